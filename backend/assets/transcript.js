// What a reader does with the tokens: move, pick, find, scroll. (`tokens.js` stands before this in the same script.)

const VIEWS = new WeakMap(); // one view a mounted component, keyed by its root
const SCROLL = "pivotscope:scroll";
const PICK = "pivotscope:pick";

// ---- moving about --------------------------------------------------------------------------------------------------

function select(view, position) {
  if (view.selected !== null) at(view, view.selected)?.setAttribute("aria-selected", "false");
  view.selected = position;
  if (position !== null) at(view, position)?.setAttribute("aria-selected", "true");
}

function activate(view, position, scroll) {
  if (view.tokens.length === 0) return;
  const { prompt } = view.content;
  position = clamp(position, prompt, prompt + view.tokens.length - 1);
  if (view.active !== null) at(view, view.active)?.classList.remove("active");
  view.active = position;
  const token = at(view, position);
  token.classList.add("active");
  view.box.setAttribute("aria-activedescendant", token.id);
  if (scroll === "page") settle(() => view.active === position && token.scrollIntoView({ block: "nearest" }));
  // The tokens alone: a selection that comes from outside must not move the reader's page.
  if (scroll === "box") settle(() => view.active !== position || inside(view, token) || scrollTo(view, token, view.box.clientHeight / 2));
}

function walk(view, position) {
  activate(view, position, "page");
  const { active } = view;
  settle(() => view.active === active && tip(view, active));
}

// A block out of sight has an estimated height: once it is drawn, the token stands elsewhere. So over a few frames.
function settle(scroll, frames = 6) {
  scroll();
  if (frames > 0) requestAnimationFrame(() => settle(scroll, frames - 1));
}

function inside(view, token) {
  const box = view.box.getBoundingClientRect(), place = token.getBoundingClientRect();
  return place.top >= box.top && place.bottom <= box.bottom;
}

function scrollTo(view, token, below) {
  view.box.scrollTop += token.getBoundingClientRect().top - view.box.getBoundingClientRect().top - below;
}

function pick(view, position) {
  select(view, position);
  activate(view, position, "page");
  view.pending.push(position); // shown at once; confirmed when Python sends it back
  view.send(position);
  if (view.group) document.dispatchEvent(new CustomEvent(PICK, { detail: { view, position } }));
}

// A group has one selection: the token picked in one transcript, and the same token in each that reads alike up to it.
function echo(view, { view: other, position }) {
  if (other === view || other.group !== view.group) return;
  const { text, prompt } = view.content, { text: theirs, prompt: start } = other.content;
  const last = position - start;
  let alike = prompt + last < text.length;
  for (let i = 0; alike && i <= last; i++) alike = text[prompt + i] === theirs[start + i];
  select(view, alike ? prompt + last : null);
  if (alike) activate(view, prompt + last, "box");
}

// Python's selection. One of our own picks coming back must not undo a later pick that is still under way.
function follow(view, selected) {
  if (selected === view.followed) return;
  view.followed = selected;
  const confirmed = view.pending.lastIndexOf(selected);
  view.pending = confirmed < 0 ? [] : view.pending.slice(confirmed + 1);
  if (view.pending.length > 0 || selected === view.selected) return;
  select(view, selected);
  if (selected !== null) activate(view, selected, "box");
}

function line(view, direction) {
  const here = view.active - view.content.prompt;
  const from = view.tokens[here].getClientRects()[0];
  let best = here, top = null;
  for (let i = here + direction; i >= 0 && i < view.tokens.length; i += direction) {
    const place = view.tokens[i].getClientRects()[0];
    if (!place || Math.abs(place.top - from.top) < 4) continue;
    if (top === null) top = place.top;
    if (Math.abs(place.top - top) > 4) break;
    best = i;
    if (direction > 0 ? place.right > from.left : place.left <= from.left) break;
  }
  return view.content.prompt + best;
}

function page(view, direction) {
  const target = at(view, view.active).getBoundingClientRect().top + direction * view.box.clientHeight * 0.9;
  return view.content.prompt + firstBelow(view, target);
}

// The first token whose line starts at or below a height on the screen.
function firstBelow(view, y) {
  let low = 0, high = view.tokens.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (view.tokens[middle].getBoundingClientRect().top < y) low = middle + 1;
    else high = middle;
  }
  return low;
}

function find(view, needle) {
  if (view.haystack === null) {
    const { text, prompt } = view.content;
    view.starts = [];
    let all = "";
    for (const token of text.slice(prompt)) {
      view.starts.push(all.length);
      all += token.toLowerCase();
    }
    view.haystack = all;
  }
  const after = view.active === null ? 0 : view.starts[view.active - view.content.prompt] + 1;
  let hit = view.haystack.indexOf(needle, after);
  if (hit < 0) hit = view.haystack.indexOf(needle); // from the top again
  if (hit < 0) return null;
  return view.content.prompt + view.starts.findLastIndex((start) => start <= hit);
}

function onKey(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || view.tokens.length === 0) return;
  if (event.key === "/") {
    event.preventDefault();
    return view.finder.focus();
  }
  if (view.active === null) activate(view, view.selected ?? view.content.prompt, null);
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    return pick(view, view.active);
  }
  const active = view.active;
  const moves = {
    ArrowRight: () => active + 1,
    ArrowLeft: () => active - 1,
    ArrowDown: () => line(view, 1),
    ArrowUp: () => line(view, -1),
    PageDown: () => page(view, 1),
    PageUp: () => page(view, -1),
    Home: () => 0,
    End: () => Infinity,
    n: () => view.stops.find((p) => p > active),
    p: () => view.stops.findLast((p) => p < active),
  };
  if (!Object.hasOwn(moves, event.key)) return;
  event.preventDefault();
  const position = moves[event.key]();
  if (position === undefined) return;
  walk(view, position);
}

function onFind(view, event) {
  event.stopPropagation(); // the page's own one-letter shortcuts are not meant here
  if (event.key !== "Enter") return;
  event.preventDefault();
  const needle = view.finder.value.toLowerCase();
  const position = needle === "" ? null : find(view, needle);
  view.finder.classList.toggle("none", needle !== "" && position === null);
  if (position !== null) walk(view, position);
}

// ---- several transcripts that scroll together ----------------------------------------------------------------------

function lead(view) {
  const { group } = view;
  if (!group || view.tokens.length === 0 || performance.now() < view.followingUntil) return;
  const index = firstBelow(view, view.box.getBoundingClientRect().top);
  document.dispatchEvent(new CustomEvent(SCROLL, { detail: { group, index, source: view.box } }));
}

function trail(view, { group, index, source }) {
  if (group !== view.group || source === view.box || view.tokens.length === 0) return;
  const token = view.tokens[Math.min(index, view.tokens.length - 1)];
  view.trailing = token;
  settle(() => {
    if (view.trailing !== token) return; // a newer place to be
    view.followingUntil = performance.now() + 150; // its own scroll event is an echo, not the reader
    scrollTo(view, token, 0);
  });
}

// ---- mounting ------------------------------------------------------------------------------------------------------

function mount(root) {
  const view = {
    root, content: null, revision: null, colour: null, group: null, tokens: [], stops: [], selected: null, active: null,
    followed: null, pending: [], trailing: null, followingUntil: 0, send: () => {},
    frame: root.querySelector(".transcript"), box: root.querySelector(".tokens"),
    finder: root.querySelector(".find"), tip: root.querySelector(".tip"),
  };
  const position = (event) => {
    const token = event.target.closest?.(".t");
    return token ? Number(token.id.slice(1)) : null;
  };
  view.box.addEventListener("click", (event) => {
    const picked = position(event);
    if (picked !== null) pick(view, picked);
  });
  view.box.addEventListener("pointerover", (event) => tip(view, position(event)));
  view.box.addEventListener("pointerleave", () => tip(view, null));
  view.box.addEventListener("blur", () => tip(view, null));
  view.box.addEventListener("focus", () => {
    if (view.active === null) activate(view, view.selected ?? view.content.prompt, null);
  });
  view.box.addEventListener("keydown", (event) => onKey(view, event));
  let frame = 0;
  view.box.addEventListener("scroll", () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => lead(view));
  });
  for (const kind of ["keydown", "keyup", "keypress"]) view.finder.addEventListener(kind, (event) => event.stopPropagation());
  view.finder.addEventListener("keydown", (event) => onFind(view, event));
  view.onScroll = (event) => trail(view, event.detail);
  document.addEventListener(SCROLL, view.onScroll);
  view.onPick = (event) => echo(view, event.detail);
  document.addEventListener(PICK, view.onPick);
  return view;
}

export default function ({ data, parentElement: root, setTriggerValue }) {
  let view = VIEWS.get(root);
  if (!view) VIEWS.set(root, (view = mount(root)));
  view.group = data.group;
  view.send = (position) => setTriggerValue("pick", position);
  view.frame.dataset.show = data.show;
  view.frame.style.setProperty("--gain", data.intensity);
  view.frame.style.setProperty("--height", `${data.height}px`);
  const isNew = view.revision !== data.rev;
  if (isNew) {
    view.revision = data.rev;
    view.content = JSON.parse(data.view);
    build(view);
  }
  if (isNew || view.colour !== data.colour) {
    view.colour = data.colour;
    paint(view);
  }
  follow(view, data.selected);
  return () => {
    document.removeEventListener(SCROLL, view.onScroll);
    document.removeEventListener(PICK, view.onPick);
    VIEWS.delete(root);
  };
}
