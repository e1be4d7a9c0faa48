// The page: what is searched by, with which options, and what the keys do.

import { ApiError, ask, askAbout, pictureUrl } from "./api.js";
import { element, group, makeGrid, makeThumb } from "./cards.js";
import { makeCrop } from "./crop.js";
import { describe, drawHeat, loadImage } from "./why.js";

const at = (id) => document.getElementById(id);
const state = { indexes: [], query: null, lists: [], asked: 0, stop: null };
const visited = new Map(); // queries by number, for the browser's back and forward
const crop = makeCrop(at("stage"), at("box"), () => { showBox(); search(); });

// ---- what is searched by

function useFile(blob) {
  if (!blob) return;
  use({ blob, name: blob.name && blob.name !== "image.png" ? blob.name : "Pasted image" });
}

function searchFrom(index, id) {
  use({ id, of: index });
  scrollTo({ top: 0, behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function use(query, remember = true, box = null) {
  state.query = query;
  crop.set(box);
  if (remember) {
    const number = visited.size;
    visited.set(number, query);
    history.pushState({ number }, "", query.blob ? "/" : `/#${query.of}:${query.id}`);
  }
  showQuery();
  return search();
}

function showQuery() {
  const query = state.query;
  const image = at("query-image");
  if (image.dataset.blob) URL.revokeObjectURL(image.dataset.blob);
  delete image.dataset.blob;
  at("stage").hidden = at("query-buttons").hidden = query === null;
  at("invite").hidden = query !== null;
  at("query-name").textContent = query?.name ?? "";
  document.body.classList.toggle("asked", query !== null);
  showBox();
  if (query === null) return;
  if (query.blob) {
    image.dataset.blob = URL.createObjectURL(query.blob);
    image.src = image.dataset.blob;
  } else {
    image.src = pictureUrl(query.of, query.id, state.indexes[query.of].version, 640);
    ask(`/api/images/${query.id}?index=${query.of}`).then((about) => {
      query.name = about.label && about.label !== about.path ? `${about.label} · ${about.path.split("/").pop()}` : about.path;
      if (state.query === query) at("query-name").textContent = query.name;
    }).catch(() => {});
  }
}

function showBox() {
  at("whole").hidden = crop.get() === null;
  at("crop").hidden = crop.get() !== null;
}

// ---- searching

function filter() {
  const label = at("label").value.trim();
  const where = at("where").value.trim();
  if (!label) return where;
  return `label == ${JSON.stringify(label)}${where ? ` and (${where})` : ""}`;
}

let timer = 0;
function searchSoon() { // once, where Enter both changes a field and submits the form
  clearTimeout(timer);
  timer = setTimeout(search, 0);
}

async function search() {
  at("error").hidden = true;
  if (state.query === null) return;
  const turn = ++state.asked;
  state.stop?.abort();
  state.stop = new AbortController();
  at("busy").hidden = false;
  at("results").setAttribute("aria-busy", "true");
  const compared = state.indexes.length > 1 && at("compare").checked ? [0, 1] : [0];
  const settings = { k: at("k").value, where: filter(), fold: at("fold").checked ? at("fold-at").value : null };
  const begin = performance.now();
  try {
    const found = await Promise.all(compared.map((index) => askAbout(
      "/api/search", state.query, crop.get(), { ...settings, index }, { signal: state.stop.signal },
    )));
    if (turn !== state.asked) return;
    state.lists = found.map((answer, place) => ({ index: compared[place], results: answer.results }));
    state.took = performance.now() - begin;
    showLists();
  } catch (error) {
    if (turn === state.asked && error.name !== "AbortError") showError(error);
  } finally {
    if (turn === state.asked) {
      at("busy").hidden = true;
      at("results").removeAttribute("aria-busy");
    }
  }
}

function showLists() {
  const sort = at("sort").value;
  const paths = state.lists.map((list) => new Set(list.results.map((result) => result.path)));
  const act = { searchFrom, mark, why };
  const count = state.lists[0].results.filter((result) => result.duplicate_of === null).length;
  const both = state.lists.length > 1 ? state.lists[0].results.filter((result) => paths[1].has(result.path)).length : 0;
  at("lists").replaceChildren(...state.lists.map((list, place) => {
    const groups = group(list.results, sort);
    const grid = makeGrid(list.index, state.indexes[list.index].version, groups, act, state.lists.length > 1 ? paths[1 - place] : null);
    const heading = state.lists.length > 1
      ? [element("h2", {}, state.indexes[list.index].name, element("small", { className: "quiet" }, ` ${both} in both`))]
      : [];
    const none = groups.length ? [] : [element("p", { className: "none" }, "Nothing fits the filter.")];
    return element("section", { className: "list", "aria-label": state.indexes[list.index].name }, ...heading, grid, ...none);
  }));
  at("lists").classList.toggle("two", state.lists.length > 1);
  at("status").textContent = `${count} result${count === 1 ? "" : "s"} in ${Math.max(1, Math.round(state.took))} ms`;
}

function showError(error) {
  at("error").textContent = error instanceof ApiError ? error.message : `Something went wrong: ${error.message}`;
  at("error").hidden = false;
  at("status").textContent = "";
  at("lists").replaceChildren();
  if (state.query?.blob && [408, 413, 415, 422].includes(error.status)) { // it is no image that can be used
    at("query-image").removeAttribute("src");
    state.query = null;
    showQuery();
  }
}

function showSamples() {
  const index = state.indexes[0];
  const grid = element("ul", { className: "grid samples", "aria-label": "Images of the index" }, ...index.samples.map((id, place) => {
    const shot = element("button", { type: "button", className: "shot", "aria-label": `Search from image ${place + 1} of the index` }, makeThumb(0, id, index.version));
    shot.addEventListener("click", () => searchFrom(0, id));
    return element("li", {}, shot);
  }));
  at("status").textContent = index.samples.length ? "Or start from one of these" : "The index is empty: firstpage index add fills it.";
  at("lists").replaceChildren(grid);
  at("lists").classList.remove("two");
}

// ---- marks, and why

async function mark(index, result, right, show) {
  try {
    const settings = { index, result: result.id, right };
    const answer = await askAbout("/api/marks", state.query, crop.get(), settings, { method: "POST" });
    show(answer.right);
    const word = answer.right === null ? "Mark removed" : answer.right ? "Marked right" : "Marked wrong";
    at("status").textContent = `${word}. ${answer.marks} mark${answer.marks === 1 ? "" : "s"} so far.`;
  } catch (error) {
    at("error").textContent = error.message;
    at("error").hidden = false;
  }
}

async function why(index, result) {
  const dialog = at("why");
  const box = crop.get();
  at("why-label").textContent = result.label || result.path;
  at("why-text").textContent = "…";
  for (const canvas of [at("why-query"), at("why-result")]) canvas.width = canvas.height = 1;
  dialog.showModal();
  try {
    const version = state.indexes[index].version;
    const [maps, query, found] = await Promise.all([
      askAbout("/api/explain", state.query, box, { index, result: result.id }),
      loadImage(state.query.blob ? at("query-image").src : pictureUrl(state.query.of, state.query.id, version, 640)),
      loadImage(pictureUrl(index, result.id, version, 640)),
    ]);
    const draw = () => {
      drawHeat(at("why-query"), query, box, maps.query, at("why-heat").checked);
      drawHeat(at("why-result"), found, null, maps.result, at("why-heat").checked);
    };
    at("why-heat").onchange = draw;
    draw();
    const seen = [maps.query, maps.result].some((map) => map.region.some((side, place) => Math.abs(side - (place > 1)) > 0.01));
    const frame = seen ? " The frame is what the network sees." : "";
    const sum = maps.exact ? "The parts of each picture add up to the score, exactly." : "The parts are estimated by gradients.";
    at("why-text").textContent =
      `Score ${maps.score.toFixed(3)}: most of it comes from ${describe(maps.query.parts)} of the query and ${describe(maps.result.parts)} of the result. ${sum}${frame}`;
    dialog.dataset.ready = String(result.id);
  } catch (error) {
    at("why-text").textContent = error.message;
  }
}

// ---- what the user does

at("invite").addEventListener("click", () => at("file").click());
at("choose").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => { useFile(at("file").files[0]); at("file").value = ""; });
at("crop").addEventListener("click", () => { crop.begin(); showBox(); });
at("whole").addEventListener("click", () => { crop.set(null, true); at("crop").focus(); });
at("show-help").addEventListener("click", () => at("help").showModal());
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { delete dialog.dataset.ready; });
}

at("form").addEventListener("submit", (event) => { event.preventDefault(); searchSoon(); });
for (const id of ["label", "where", "k", "fold", "compare"]) at(id).addEventListener("change", searchSoon);
at("sort").addEventListener("change", () => { if (state.lists.length && state.query) showLists(); });
at("fold-at").addEventListener("input", () => { at("fold-value").textContent = Number(at("fold-at").value).toFixed(3).replace(/0$/, ""); });
at("fold-at").addEventListener("change", searchSoon);
at("fold").addEventListener("change", () => { at("fold-row").hidden = !at("fold").checked; });

addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  useFile(event.dataTransfer.files[0]);
});
addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])][0];
  if (file) { event.preventDefault(); useFile(file); }
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea, dialog")) return;
  const act = {
    o: () => at("file").click(),
    c: () => { if (state.query) { crop.begin(); showBox(); } },
    "/": () => { at("options").open = true; at("where").focus(); },
    "?": () => at("help").showModal(),
    Escape: () => { if (crop.get()) crop.set(null, true); },
  }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (act) { event.preventDefault(); act(); }
});
addEventListener("popstate", (event) => { follow(event.state); });

function follow(past) {
  const query = visited.get(past?.number) ?? fromAddress();
  if (query) { use(query, false); return; }
  state.query = null;
  state.asked += 1;
  at("error").hidden = true;
  showQuery();
  showSamples();
}

function fromAddress() {
  const [, of, id] = location.hash.match(/^#([01]):(\d{1,15})$/) ?? [];
  return id !== undefined && state.indexes[Number(of)] ? { id: Number(id), of: Number(of) } : null;
}

async function begin() {
  try {
    state.indexes = await ask("/api/indexes");
  } catch (error) {
    showError(error);
    return;
  }
  const [first, second] = state.indexes;
  at("about").textContent = `${first.images.toLocaleString()} images · ${first.name}${second ? ` and ${second.name}` : ""}`;
  at("labels").replaceChildren(...Object.entries(first.labels).map(([name, count]) => element("option", { value: name, label: `${name} (${count})` })));
  at("where-help").textContent = `Columns: ${first.columns.join(", ")}`;
  at("compare-row").hidden = !second;
  if (second) { // what is a near-duplicate to one model may be none to the other
    at("fold").checked = false;
    at("fold-row").hidden = true;
  }
  if (matchMedia("(max-width: 760px)").matches) at("options").open = false;
  follow(history.state);
}

begin();
