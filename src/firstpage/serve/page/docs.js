// The API, from its own description.

import { element } from "./cards.js";

const described = await (await fetch("/openapi.json")).json();
const routes = document.getElementById("routes");
for (const [path, methods] of Object.entries(described.paths)) {
  for (const [method, route] of Object.entries(methods)) {
    const rows = (route.parameters ?? []).map((parameter) => element(
      "tr", {},
      element("th", { scope: "row" }, element("code", {}, parameter.name), parameter.required ? " *" : ""),
      element("td", {}, kind(parameter.schema)),
      element("td", {}, parameter.description ?? ""),
    ));
    const body = route.requestBody ? [element("p", {}, `Body: ${route.requestBody.description}`)] : [];
    const answer = route.responses["200"]?.content?.["application/json"]?.schema;
    routes.append(element(
      "section", {},
      element("h2", {}, element("code", {}, `${method.toUpperCase()} ${path}`)),
      element("p", {}, route.summary ?? ""),
      ...body,
      ...(rows.length ? [element("table", {}, element("tbody", {}, ...rows))] : []),
      ...(answer ? [element("p", { className: "quiet" }, `Answer: ${kind(answer)}`)] : []),
    ));
  }
}

function kind(schema = {}) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).filter((name) => name !== "null").join(" or ");
  const name = schema.type === "array" ? `list of ${kind(schema.items)}` : schema.type ?? "";
  const fallback = schema.default === undefined || schema.default === null ? "" : `, ${schema.default} unless given`;
  return `${name}${fallback}`;
}
