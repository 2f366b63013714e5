// Creates DOM elements. All strings become text nodes or attributes; none is parsed as HTML.

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return parent;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function table(caption, headings, rows) {
  const head = h("tr", {}, headings.map(({ text, number }) => h("th", { scope: "col", class: number ? "number" : null }, text)));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, at) => h("td", { class: headings[at].number ? "number" : null }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)));
}
