// Runs page.js in node, without a browser: node page_in_node.js FOLDER URL, with the body of an async
// function on stdin. It is run in the page, against the server at URL; what it returns is printed as
// JSON. The page polls only when the body says `await poll()`; the body may change files by `fs`, and
// wait `until(() => ...)`. Of the document there is what page.js uses: elements that know their
// children, attributes and listeners, and that draw nothing.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const pen = () => new Proxy({}, {
  get: (kept, name) => (name === "measureText" ? () => ({ width: 10 }) : kept[name] ?? (() => {})),
});

class FakeElement {
  constructor(name) {
    Object.assign(this, { name, children: [], parent: null, own: "", style: {}, dataset: {}, attributes: {},
      listeners: {}, className: "", hidden: false, value: "", checked: false, title: "", scrollTop: 0,
      clientWidth: 600, clientHeight: 240, scrollHeight: 240, offsetWidth: 80, offsetHeight: 40 });
    const classes = new Set();
    this.classList = { toggle: (name, yes) => (yes ? classes.add(name) : classes.delete(name)) };
  }

  get textContent() { return this.own + this.children.map((each) => each.textContent).join(""); }
  set textContent(text) { this.replaceChildren(); this.own = String(text); }
  get firstChild() { return this.children[0] ?? null; }

  append(...nodes) {
    for (const node of nodes) {
      const child = typeof node === "object" ? node : Object.assign(new FakeElement("#text"), { own: String(node) });
      child.remove();
      child.parent = this;
      this.children.push(child);
    }
  }

  remove() {
    if (this.parent) this.parent.children = this.parent.children.filter((each) => each !== this);
    this.parent = null;
  }

  replaceChildren(...nodes) {
    for (const child of [...this.children]) child.remove();
    this.own = "";
    this.append(...nodes);
  }

  setAttribute(name, value) { this.attributes[name] = String(value); if (name === "value") this.value = String(value); }
  getAttribute(name) { return this.attributes[name] ?? null; }
  addEventListener(kind, listener) { (this.listeners[kind] ??= []).push(listener); }
  fire(kind) { for (const listener of this.listeners[kind] ?? []) listener({ stopPropagation() {} }); }
  getContext() { return pen(); }
  setPointerCapture() {}
}

function fakeDocument(html) {
  const withId = new Map([...html.matchAll(/ id="([\w-]+)"/g)].map(([, id]) => [id, new FakeElement(id)]));
  for (const [, x] of html.matchAll(/data-x="(\w+)"/g)) {
    const button = new FakeElement("button");
    button.dataset.x = x;
    withId.get("axis").append(button);
  }
  const tabs = [...html.matchAll(/id="([\w-]+)".* data-tab="(\w+)"/g)].map(([, id, tab]) => {
    Object.assign(withId.get(id).dataset, { tab });
    withId.get(id).setAttribute("role", "tab");
    return withId.get(id);
  });
  return {
    hidden: true, title: "", body: new FakeElement("body"),
    getElementById: (id) => withId.get(id),
    createElement: (name) => new FakeElement(name),
    createElementNS: (_, name) => new FakeElement(name),
    querySelector: (words) => withId.get(words),
    querySelectorAll: () => tabs,
    addEventListener() {},
  };
}

async function run(folder, url, body) {
  const location = { hash: new URL(url).hash };
  const page = vm.createContext({
    console, fs, URLSearchParams, location, document: fakeDocument(fs.readFileSync(path.join(folder, "page.html"), "utf8")),
    fetch: (asked, options) => fetch(new URL(asked, url), options),
    history: { replaceState: (_state, _title, hash) => { location.hash = hash; } },
    ResizeObserver: class { observe() {} },
    matchMedia: () => ({ addEventListener() {} }),
    getComputedStyle: () => ({ getPropertyValue: () => "1px" }),
    addEventListener() {},
    setTimeout() {},
    until: async (holds) => { while (!holds()) await new Promise((resolve) => setTimeout(resolve, 10)); },
  });
  page.window = page;
  vm.runInContext(fs.readFileSync(path.join(folder, "page.js"), "utf8"), page, { filename: "page.js" });
  return vm.runInContext(`(async () => { ${body} })()`, page, { filename: "test" });
}

run(process.argv[2], process.argv[3], fs.readFileSync(0, "utf8")).then(
  (value) => { fs.writeSync(1, JSON.stringify(value ?? null)); process.exit(0); },
  (error) => { console.error(error); process.exit(1); },
);
