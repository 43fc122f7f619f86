// Elements as plain values, and the smallest change that makes the page show them. What stays keeps its focus,
// its selection and its scroll position. Text becomes text nodes only: no value is ever parsed as HTML.

const SVG = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "polygon"]);

// h("p.quiet", {title: "…"}, "text", h(…)): children may be nested lists; null and false are left out.
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  const all = { ...attributes };
  if (classes.length) all.class = [...classes, all.class].filter(Boolean).join(" ");
  return { tag, attributes: all, key: all.key, children: flat(children) };
}

const flat = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

function make(node) {
  if (typeof node !== "object") return document.createTextNode(String(node));
  const element = SVG.has(node.tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", node.tag)
    : document.createElement(node.tag);
  element.consoleKey = node.key;
  update(element, node);
  return element;
}

function fits(element, node) {
  if (!element) return false;
  if (typeof node !== "object") return element.nodeType === Node.TEXT_NODE;
  return element.nodeType === Node.ELEMENT_NODE && element.localName === node.tag && element.consoleKey === node.key;
}

function update(element, node) {
  if (typeof node !== "object") {
    if (element.data !== String(node)) element.data = String(node);
    return;
  }
  const before = element.consoleAttributes || {};
  for (const name of new Set([...Object.keys(before), ...Object.keys(node.attributes)])) {
    const value = node.attributes[name];
    if (name === "key" || before[name] === value) continue;
    if (name.startsWith("on")) element[name] = value ?? null;
    else if (name === "width%") element.style.width = `${value}%`;
    else if (value === undefined || value === null || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.consoleAttributes = node.attributes;
  children(element, node.children);
}

function children(parent, nodes) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (child.consoleKey !== undefined) keyed.set(child.consoleKey, child);
  let at = parent.firstChild;
  for (const node of nodes) {
    const known = node.key !== undefined && keyed.get(node.key);
    if (known && known !== at) {
      parent.insertBefore(known, at);
      at = known;
    }
    if (fits(at, node)) {
      update(at, node);
      at = at.nextSibling;
    } else {
      parent.insertBefore(make(node), at);
      // An element with a key may be wanted further on.
      if (at && at.consoleKey === undefined) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
      }
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

// Makes `parent` contain exactly `nodes`.
export const show = (parent, ...nodes) => children(parent, flat(nodes));
