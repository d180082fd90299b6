"""A/B: ask an endpoint as 40 users, send feedback for each answer, and read the report.

The endpoint has two served entities and `experiment = { feedback = { liked = "higher" } }`. No package is needed.
"""

import json
import sys
import urllib.request
from collections import Counter

url, model = sys.argv[1:]


def ask(path: str, body: dict | None = None) -> tuple[dict, dict]:
    """Ask with JSON; return the answer and its headers."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        read = answer.read()
        return json.loads(read) if read else {}, dict(answer.headers)


arms = {}
for number in range(40):
    user = f"user-{number % 20}"  # each asks twice, and gets the same arm
    question = {"role": "user", "content": "Hello!"}
    answer, headers = ask("/v1/chat/completions", {"model": model, "messages": [question], "user": user})
    arm = headers["served-model-name"]
    assert arms.setdefault(user, arm) == arm, "a user has changed the arm"
    liked = len(answer["choices"][0]["message"]["content"]) % 2
    ask("/v1/feedback", {"request_id": headers["x-request-id"], "metric": "liked", "value": liked})
print("users by arm:", dict(Counter(arms.values())))

report, _ = ask(f"/serving-endpoints/{model}/experiment")
for arm in report["arms"]:
    print(f"{arm['name']}: {arm['exposures']} requests")
for word in report["verdict"]["arms"]:
    print(f"verdict on {word['arm']}: {word['word']}, {word['reason']}")
