// Requests to the API. An uploaded query is sent along each time: the server keeps none.

export const MAX_UPLOAD = 33554432; // bytes, as the server has it

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?");
  }
  if (answer.status === 401) {
    location.assign("/"); // which asks for the token
    throw new ApiError("The server asks for its token.");
  }
  const body = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  if (!answer.ok) throw new ApiError(sentence(body.error), answer.status);
  return body;
}

function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "Something went wrong.";
}

// Ask about a query: { id, of } for an image of an index, { blob } for another.
export function askAbout(path, query, box, settings, { method = null, signal = undefined } = {}) {
  const values = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    if (value !== null && value !== undefined && value !== "") values.set(name, value);
  }
  if (box) values.set("box", box.map((side) => side.toFixed(5)).join(","));
  if (query.blob) {
    if (query.blob.size > MAX_UPLOAD) {
      throw new ApiError(`That file has ${Math.round(query.blob.size / 1048576)} MiB; at most ${MAX_UPLOAD / 1048576} are taken.`, 413);
    }
    return ask(`${path}?${values}`, { method: "POST", body: query.blob, signal, headers: { "content-type": "application/octet-stream" } });
  }
  values.set("id", query.id);
  values.set("of", query.of);
  return ask(`${path}?${values}`, { method: method ?? "GET", signal });
}

export function pictureUrl(index, id, version, side) {
  const kind = side ? "picture" : "thumbnail";
  return `/api/images/${id}/${kind}?index=${index}&v=${encodeURIComponent(version)}${side ? `&side=${side}` : ""}`;
}
