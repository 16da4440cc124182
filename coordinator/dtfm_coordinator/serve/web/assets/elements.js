// Elements of the page. Whatever others have written gets in as text alone.

export const find = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") made.addEventListener("click", value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function drawn(tag, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

export function say(target, text) {
  const at = typeof target === "string" ? find(target) : target;
  if (at.textContent !== text) at.textContent = text;
  return at;
}

export function show(id, visible) {
  find(id).hidden = !visible;
}

// Text with what stands between backticks as code.
export function prose(at, text) {
  if (at.dataset.text === text) return at;
  at.dataset.text = text;
  at.replaceChildren(...text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part)).filter((part) => part !== ""));
  return at;
}
