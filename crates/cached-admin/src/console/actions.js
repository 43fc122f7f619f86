// Changes that the holder of the token may make: each is confirmed in a dialog, and is one POST with the token in a header.

import { h } from "./dom.js";
import { printable, short } from "./format.js";

const field = (name, label, choices) => ({ name, label, choices });

// {title, text, fields, verb, path, body, done}: `body` makes the request's body of the fields' values.
export const snapshotOf = ({ name }) => ({
  title: `Snapshot of ${short(name)}`, verb: "Create snapshot", path: "volumes/snapshot", fields: [field("snapshot", "Name of the snapshot")],
  text: "It keeps what the volume contains now. Clients continue.",
  body: ({ snapshot }) => ({ volumes: [name], snapshot }), done: ({ snapshot }) => `The snapshot ${short(snapshot)} of ${short(name)} exists.`,
});

export const cloneOf = ({ name, snapshots }) => ({
  title: `Clone of ${short(name)}`, verb: "Create clone", path: "volumes/clone", text: "The new volume shares all data that neither of the two changes.",
  fields: [field("name", "Name of the new volume"), field("snapshot", "What it contains", [["", "what the volume contains now"], ...(snapshots || []).map((one) => [one.name, short(one.name)]).reverse()])],
  body: (of) => ({ source: name, snapshot: of.snapshot || null, name: of.name }), done: (of) => `The volume ${short(of.name)} exists.`,
});

export const flushOf = ({ name }) => ({
  title: `Flush ${short(name)}`, verb: "Flush", path: "volumes/flush", fields: [], text: "Everything that clients have written is stored. Clients continue.",
  body: () => ({ name }), done: () => `Everything written to ${short(name)} is stored.`,
});

export const detachOf = ({ name }) => ({
  title: `Detach ${short(name)}`, verb: "Detach", path: "volumes/detach", fields: [],
  text: "Everything is stored, and another host may attach the volume. This is refused while clients use it.",
  body: () => ({ name }), done: () => `${short(name)} is detached.`,
});

export const flushOfNamespace = (namespace) => ({
  title: `Flush the namespace ${short(namespace)}`, verb: "Flush", path: "namespaces/flush", fields: [], text: "All its dirty data are stored. Clients continue.",
  body: () => ({ namespace }), done: () => `The dirty data of ${short(namespace)} are stored.`,
});

// The content of the dialog.
export function confirmation({ action, submit, cancel }) {
  const busy = action.state === "running";
  const input = ({ name, label, choices }) => {
    const attributes = { id: `field-${name}`, name, disabled: busy };
    return [
      h("label", { for: attributes.id }, label),
      choices
        ? h("select", attributes, choices.map(([value, text]) => h("option", { value }, text)))
        : h("input", { ...attributes, type: "text", required: true, autocomplete: "off", spellcheck: "false" }),
    ];
  };
  // Each dialog begins with empty fields.
  return h("form", { key: action.id, onsubmit: submit },
    h("h2", { id: "dialog-title" }, action.title),
    h("p", {}, action.text),
    action.fields.map(input),
    h("p.bad", { role: "alert" }, action.state === "failed" && `▲ ${printable(action.why, 500)}`),
    h("p.doers", {},
      h("button", { type: "button", disabled: busy, onclick: cancel }, "Cancel"),
      h("button.main", { type: "submit", disabled: busy }, busy ? "Working …" : action.verb)));
}
