// "Why this one": both pictures with what each part of them adds to the score.

const SIDE = 460;
// From little to most; the same colors as the ramp in style.css.
const RAMP = [[38, 22, 84, 0.0], [108, 30, 120, 0.42], [205, 58, 92, 0.6], [247, 137, 46, 0.68], [253, 220, 100, 0.74]];

export function loadImage(source) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("no picture"));
    image.src = source;
  });
}

// Draw a picture, or the part of it in a box, and over it the heat map of the region that the network saw.
export function drawHeat(canvas, image, box, map, heat) {
  const [x0, y0, x1, y1] = box ?? [0, 0, 1, 1];
  const wide = (x1 - x0) * image.naturalWidth;
  const tall = (y1 - y0) * image.naturalHeight;
  const scale = SIDE / Math.max(wide, tall);
  canvas.width = Math.max(1, Math.round(wide * scale));
  canvas.height = Math.max(1, Math.round(tall * scale));
  const paper = canvas.getContext("2d");
  paper.imageSmoothingQuality = "high";
  paper.drawImage(image, x0 * image.naturalWidth, y0 * image.naturalHeight, wide, tall, 0, 0, canvas.width, canvas.height);
  if (!heat) return;
  paper.fillStyle = "rgb(12 12 24 / 38%)"; // darker, so that what adds much stands out
  paper.fillRect(0, 0, canvas.width, canvas.height);
  const [left, top, right, bottom] = map.region;
  paper.drawImage(
    colored(map.parts), left * canvas.width, top * canvas.height, (right - left) * canvas.width, (bottom - top) * canvas.height,
  );
  paper.strokeStyle = "rgb(255 255 255 / 75%)";
  paper.setLineDash([5, 5]);
  paper.strokeRect(left * canvas.width, top * canvas.height, (right - left) * canvas.width, (bottom - top) * canvas.height);
}

function colored(parts) {
  const small = document.createElement("canvas");
  small.height = parts.length;
  small.width = parts[0].length;
  const paper = small.getContext("2d");
  const pixels = paper.createImageData(small.width, small.height);
  const most = Math.max(...parts.flat(), 1e-9);
  parts.flat().forEach((part, place) => {
    const [red, green, blue, alpha] = color(Math.max(0, part / most));
    pixels.data.set([red, green, blue, 255 * alpha], 4 * place);
  });
  paper.putImageData(pixels, 0, 0);
  return small;
}

function color(share) {
  const place = share * (RAMP.length - 1);
  const first = Math.min(Math.floor(place), RAMP.length - 2);
  return RAMP[first].map((value, channel) => value + (place - first) * (RAMP[first + 1][channel] - value));
}

// Where most of it is, in words.
export function describe(parts) {
  const rows = parts.length;
  const columns = parts[0].length;
  let best = [0, 0];
  parts.forEach((line, row) => line.forEach((part, column) => {
    if (part > parts[best[0]][best[1]]) best = [row, column];
  }));
  const down = ["top", "middle", "bottom"][Math.min(2, Math.floor((3 * (best[0] + 0.5)) / rows))];
  const across = ["left", "center", "right"][Math.min(2, Math.floor((3 * (best[1] + 0.5)) / columns))];
  if (down === "middle") return across === "center" ? "the center" : `the ${across}`;
  return across === "center" ? `the ${down}` : `the ${down} ${across}`;
}
