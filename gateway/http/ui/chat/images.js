// Images that somebody attaches: chosen, dropped or pasted. Large ones are made smaller, as models would anyway.
const MOST_PIXELS = 1536; // of the longer side

/** Images as `data:` URLs; throws if a file is none. */
export async function read(files) {
  const other = [...files].find((file) => !file.type.startsWith("image/"));
  if (other) throw new Error(`${other.name} is not an image. Only images can be attached.`);
  return Promise.all([...files].map(readOne));
}

async function readOne(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`The image ${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
  const image = new Image();
  image.src = url;
  await image.decode().catch(() => {
    throw new Error(`The image ${file.name} cannot be read.`);
  });
  const factor = MOST_PIXELS / Math.max(image.naturalWidth, image.naturalHeight);
  if (factor >= 1) return url;
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(image.naturalWidth * factor);
  canvas.height = Math.round(image.naturalHeight * factor);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}
