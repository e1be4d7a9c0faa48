// The first page: results as a grid, each with its score, its marks, and its near-duplicates folded under it.

import { pictureUrl } from "./api.js";

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Results in groups: each result with its near-duplicates.
export function group(results, sort) {
  const groups = new Map();
  for (const result of results) {
    const first = groups.get(result.duplicate_of);
    if (first) first.folded.push(result);
    else groups.set(result.id, { ...result, folded: [] });
  }
  const all = [...groups.values()];
  if (sort !== "score") all.sort((one, two) => one[sort].localeCompare(two[sort], undefined, { numeric: true }));
  return all;
}

export function makeGrid(index, version, groups, act, others) {
  const grid = element("ul", { className: "grid", "aria-label": "Results" });
  groups.forEach((result, rank) => {
    grid.append(makeCard(index, version, result, rank, act, others));
  });
  const first = grid.querySelector(".shot");
  if (first) first.tabIndex = 0;
  grid.addEventListener("keydown", (event) => moveFocus(grid, event));
  grid.addEventListener("focusin", (event) => {
    if (!event.target.classList.contains("shot")) return;
    for (const shot of grid.querySelectorAll(".shot")) shot.tabIndex = shot === event.target ? 0 : -1;
  });
  return grid;
}

export function makeThumb(index, id, version) {
  const image = element("img", { alt: "", loading: "lazy", draggable: false, src: pictureUrl(index, id, version) });
  image.addEventListener("load", () => { // the small one is there at once, the sharp one follows
    const sharp = new Image();
    sharp.onload = () => { image.src = sharp.src; };
    sharp.src = pictureUrl(index, id, version, 480);
  }, { once: true });
  return image;
}

function percent(share) { // no probability is 0 % or 100 %
  if (share > 0.99) return ">99 %";
  return share < 0.01 ? "<1 %" : `${Math.round(100 * share)} %`;
}

function makeCard(index, version, result, rank, act, others) {
  const score = result.score.toFixed(3);
  const same = result.probability === null ? "" : `same: ${percent(result.probability)}`;
  const shot = element(
    "button",
    { type: "button", className: "shot", tabIndex: -1, "aria-label": `Result ${rank + 1}: ${result.label || "no label"}, score ${score}${same ? `, ${same}` : ""}. Search from it` },
    makeThumb(index, result.id, version),
  );
  shot.addEventListener("click", () => act.searchFrom(index, result.id));
  const about = [result.path, ...Object.entries(result.columns).map(([name, value]) => `${name}: ${value}`)].join("\n");
  const meter = element("i");
  meter.style.width = `${Math.max(0, Math.min(1, result.score)) * 100}%`;
  const frame = element("div", { className: "frame" }, shot);
  const card = element(
    "li",
    { className: "card", title: about },
    frame,
    element("p", { className: "label" }, result.label || result.path),
    element("p", { className: "score" }, element("span", { className: "number" }, score), element("span", { className: "meter", "aria-hidden": "true" }, meter)),
  );
  if (same) card.append(element("p", { className: result.probability >= 0.5 ? "same likely" : "same" }, same));
  if (others && !others.has(result.path)) {
    frame.append(element("p", { className: "only" }, "only here"));
  }
  card.append(makeActions(index, result, card, act));
  if (result.folded.length) {
    const [button, list] = makeFold(index, version, result, act);
    frame.append(button);
    card.append(list);
  }
  card.dataset.id = result.id;
  return card;
}

function makeActions(index, result, card, act) {
  const right = element("button", { type: "button", className: "mark right", title: "Right (Y)", "aria-label": "Right" }, "✓");
  const wrong = element("button", { type: "button", className: "mark wrong", title: "Wrong (N)", "aria-label": "Wrong" }, "✗");
  const why = element("button", { type: "button", className: "why", title: "Why this one (W)", "aria-haspopup": "dialog" }, "Why?");
  const show = (mark) => {
    result.mark = mark;
    right.setAttribute("aria-pressed", String(mark === true));
    wrong.setAttribute("aria-pressed", String(mark === false));
    card.classList.toggle("is-right", mark === true);
    card.classList.toggle("is-wrong", mark === false);
  };
  show(result.mark);
  right.addEventListener("click", () => act.mark(index, result, true, show));
  wrong.addEventListener("click", () => act.mark(index, result, false, show));
  why.addEventListener("click", () => act.why(index, result));
  return element("div", { className: "actions" }, right, wrong, why);
}

function makeFold(index, version, result, act) {
  const count = result.folded.length;
  const list = element("div", { className: "folded", hidden: true });
  const button = element(
    "button",
    { type: "button", className: "unfold", title: "Near-duplicates (D)", "aria-expanded": "false", "aria-label": `${count} near-duplicate${count > 1 ? "s" : ""}` },
    `+${count}`,
  );
  button.addEventListener("click", () => {
    if (!list.childElementCount) {
      for (const other of result.folded) {
        const small = element(
          "button", { type: "button", title: `${other.path}\n${other.score.toFixed(3)}`, "aria-label": `Near-duplicate: ${other.label}, score ${other.score.toFixed(3)}. Search from it` },
          makeThumb(index, other.id, version),
        );
        small.addEventListener("click", () => act.searchFrom(index, other.id));
        list.append(small);
      }
    }
    list.hidden = !list.hidden;
    button.setAttribute("aria-expanded", String(!list.hidden));
  });
  return [button, list];
}

function moveFocus(grid, event) {
  const card = event.target.closest(".card");
  if (!card || event.ctrlKey || event.altKey || event.metaKey) return;
  const click = { w: ".why", y: ".mark.right", n: ".mark.wrong", d: ".unfold" }[event.key.toLowerCase()];
  if (click) {
    card.querySelector(click)?.click();
    event.preventDefault();
    return;
  }
  const cards = [...grid.children];
  const place = cards.indexOf(card);
  const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  const target = {
    ArrowLeft: place - 1, ArrowRight: place + 1, ArrowUp: place - columns, ArrowDown: place + columns, Home: 0, End: cards.length - 1,
  }[event.key];
  if (target === undefined) return;
  event.preventDefault();
  cards[target]?.querySelector(".shot").focus();
}
