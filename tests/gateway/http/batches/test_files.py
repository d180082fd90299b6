"""Files: uploads as they come over the wire, what is refused, and lists."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.gateway.http.batches.serving import batching, upload


async def test_a_file_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    content = bytes(range(256)) * 2000 + b"\r\n--"
    async with batching(tmp_path) as client:
        form = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        made = await client.post("/v1/files", data=form, files={"file": ("../../etc/pass\nwd", content)})
        file = made.json()
        assert file["object"] == "file"
        assert file["bytes"] == len(content)
        assert "/" not in file["filename"]
        assert file["expires_at"] == file["created_at"] + 3600
        assert (await client.get(f"/v1/files/{file['id']}")).json() == file
        assert (await client.get(f"/v1/files/{file['id']}/content")).content == content
        head = await client.head(f"/v1/files/{file['id']}/content")
        assert (head.content, head.headers["content-length"]) == (b"", str(len(content)))
        gone = await client.delete(f"/v1/files/{file['id']}")
        assert gone.json() == {"id": file["id"], "object": "file", "deleted": True}
        assert (await client.get(f"/v1/files/{file['id']}")).status_code == 404
        assert (await client.delete(f"/v1/files/{file['id']}")).status_code == 404
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("coding", ["gzip", "Deflate", "br"])
async def test_a_compressed_upload_is_refused_by_its_coding(tmp_path: Path, coding: str) -> None:
    async with batching(tmp_path) as client:
        form, content = {"purpose": "batch"}, {"file": ("a", b"x")}
        plain = await client.post("/v1/files", data=form, files=content, headers={"content-encoding": "identity"})
        assert plain.status_code == 200
        refused = await client.post("/v1/files", data=form, files=content, headers={"content-encoding": coding})
        assert refused.status_code == 415
        assert f"'{coding.lower()}'" in refused.json()["error"]["message"]
        assert len(list((tmp_path / "files").iterdir())) == 1


@pytest.mark.slow
async def test_wrong_uploads_leave_nothing(tmp_path: Path) -> None:
    async with batching(tmp_path, max_file_bytes=1000, max_bytes=6000) as client:
        post = client.post
        content = {"file": ("a", b"x")}
        boundary = {"content-type": "multipart/form-data; boundary=b"}
        answers = [
            await post("/v1/files", files=content),
            await post("/v1/files", data={"purpose": "fine-tune"}, files=content),
            await post("/v1/files", files={"purpose": (None, b"batch")}),
            await post("/v1/files", data={"purpose": "batch", "expires_after[seconds]": "3600"}, files=content),
            await post("/v1/files", data={"purpose": "batch", "other": "1"}, files=content),
            await post("/v1/files", content=b"--b\r\ncontent-dis", headers=boundary),
            await post("/v1/files", content=b"nothing", headers=boundary),
            await post("/v1/files", data={"purpose": "batch", "x": "y" * 2000}, files=content),
        ]
        assert [answer.status_code for answer in answers] == [400] * len(answers)
        assert [answer.json()["error"]["param"] for answer in answers[:5]] == [
            *("purpose", "purpose", "file", "expires_after[anchor]", "other"),
        ]
        assert (await post("/v1/files", json={})).status_code == 415
        large = await post("/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"x" * 1001)})
        assert large.status_code == 413
        assert list((tmp_path / "files").iterdir()) == []
        await upload(client, ["x" * 900])
        full = await post("/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"x" * 900)})
        assert full.status_code in (400, 413)
        assert len(list((tmp_path / "files").iterdir())) == 1


async def test_lists_have_pages_in_both_orders(tmp_path: Path) -> None:
    async with batching(tmp_path) as client:
        ids = [await upload(client, [str(number)]) for number in range(3)]

        async def listed(query: str) -> tuple[list[str], bool]:
            answer: httpx.Response = await client.get(f"/v1/files?{query}")
            return [each["id"] for each in answer.json()["data"]], answer.json()["has_more"]

        assert await listed("") == (ids[::-1], False)
        assert await listed("order=asc&limit=2") == (ids[:2], True)
        assert await listed(f"order=asc&after={ids[1]}") == (ids[2:], False)
        assert await listed("purpose=batch_output") == ([], False)
        assert (await client.get("/v1/files?order=up")).status_code == 400
