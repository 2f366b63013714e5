// Creates DOM elements. All strings become text nodes or attributes; none is parsed as HTML.

export function h(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return parent;
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function table(caption, headings, rows) {
  const head = h("tr", {}, headings.map((each) => h("th", { scope: "col", class: each.number ? "number" : null }, each.text)));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, at) => h("td", { class: headings[at].number ? "number" : null }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)));
}
