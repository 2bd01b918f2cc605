// Draws a rollout's tokens. A token's text is somebody else's: it goes into the page by textContent only.

const VIEWS = new WeakMap(); // one view a mounted component, keyed by its root
const SCROLL = "pivotscope:scroll";
const BLOCK = 256; // tokens a block, at least: the browser skips the layout of blocks out of sight
const LONGEST_BLOCK = 1024;

const signed = (x) => (x > 0 ? "+" : x < 0 ? "−" : "") + Math.abs(x).toFixed(2);
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// ---- text ----------------------------------------------------------------------------------------------------------

function write(node, text) {
  if (text === "") text = "∅";
  for (const piece of text.split(/([\n\t])/)) {
    if (piece === "") continue;
    if (piece === "\n" || piece === "\t") node.append(element("span", "mark", piece === "\n" ? "↵" : "→"));
    node.append(piece);
  }
}

function build(view) {
  const { text, prompt } = view.data.view;
  const top = view.box.scrollTop;
  const fragment = document.createDocumentFragment();
  view.tokens = [];
  let block = null, held = 0;
  for (let position = prompt; position < text.length; position++) {
    if (block === null) {
      block = element("div", "block");
      block.setAttribute("role", "none");
      fragment.append(block);
      held = 0;
    }
    const token = element("span", "t");
    token.id = `t${position}`;
    token.setAttribute("role", "option");
    write(token, text[position]);
    block.append(token);
    view.tokens.push(token);
    held++;
    if ((held >= BLOCK && text[position].endsWith("\n")) || held >= LONGEST_BLOCK) block = null;
  }
  view.box.replaceChildren(fragment);
  view.box.scrollTop = top;

  const promptText = view.root.querySelector(".prompt-text");
  promptText.textContent = text.slice(0, prompt).join("");
  view.root.querySelector(".prompt").hidden = prompt === 0;
  view.root.querySelector(".prompt summary").textContent = `Prompt · ${prompt} tokens`;

  const measured = Object.values(view.data.view.credit).flatMap((credits) => Object.keys(credits).map(Number));
  view.stops = [...new Set([...measured, ...view.data.view.candidates])].filter((p) => p >= prompt).sort((a, b) => a - b);
  view.candidates = new Set(view.data.view.candidates);
  view.special = new Set(view.data.view.special);
  view.haystack = null;
}

// ---- colour --------------------------------------------------------------------------------------------------------

// What a token looks like under a colour: [classes, strength 0..1], or null where it is not measured.
function look(content, colour, position) {
  if (colour === "margin") {
    const margin = content.margin[position];
    return margin === undefined ? null : [["low"], Math.exp(-margin)];
  }
  if (colour === "flip") {
    const flip = content.flip[position];
    return flip === undefined ? null : flip ? [["alarm"], 1] : [["zero"], 0];
  }
  const value = (colour === "credit" ? content.credit.exact ?? {} : content.delta)[position];
  if (value === undefined) return null;
  return [[value > 0 ? "pos" : value < 0 ? "neg" : "zero"], Math.min(1, Math.abs(value))];
}

function paint(view) {
  const { view: content, colour } = view.data;
  view.tokens.forEach((token, index) => {
    const position = content.prompt + index;
    const seen = look(content, colour, position);
    const names = ["t"];
    if (seen) names.push("measured", ...seen[0]);
    if (content.flip[position]) names.push("disagrees");
    if (view.candidates.has(position)) names.push("candidate");
    if (view.special.has(position)) names.push("special");
    token.className = names.join(" ");
    if (seen) token.style.setProperty("--v", seen[1].toFixed(3));
    else token.removeAttribute("style");
    token.setAttribute("aria-label", spoken(content, position));
    token.setAttribute("aria-selected", String(position === view.selected));
  });
  if (view.active !== null) at(view, view.active)?.classList.add("active");
  legend(view);
}

function spoken(content, position) {
  const said = [JSON.stringify(content.text[position]), `position ${position}`];
  const credit = content.credit.exact?.[position];
  said.push(credit === undefined ? "not measured" : `credit ${signed(credit)}`);
  if (content.flip[position]) said.push("refeed disagrees");
  return said.join(", ");
}

const SCALES = {
  credit: { name: "Credit Â", steps: [-1, -0.5, -0.25, 0, 0.25, 0.5, 1] },
  "refeed − exact": { name: "Â refeed − Â exact", steps: [-1, -0.5, -0.25, 0, 0.25, 0.5, 1] },
  margin: { name: "Margin, nats", steps: [0, 0.5, 1, 2, 4] },
  flip: { name: "Sign of Â, refeed against exact", steps: [true, false] },
};

function legend(view) {
  const { colour } = view.data;
  const { name, steps } = SCALES[colour];
  const scale = element("span", "scale");
  for (const step of steps) {
    const one = { credit: { exact: { 0: step } }, delta: { 0: step }, margin: { 0: step }, flip: { 0: step } };
    const [classes, strength] = look(one, colour, 0);
    const label = colour === "flip" ? (step ? "differs" : "same") : colour === "margin" ? String(step) : signed(step);
    const swatch = element("span", ["t", "measured", ...classes].join(" "), label);
    swatch.style.setProperty("--v", strength);
    scale.append(swatch);
  }
  scale.append(element("span", "t", "not measured"));
  const disagrees = element("span", "cue");
  disagrees.append(element("span", "t measured disagrees", "refeed disagrees"));
  const candidate = element("span", "cue");
  candidate.append(element("span", "t measured candidate", "low margin"));
  view.root.querySelector(".legend").replaceChildren(element("span", "name", name), scale, disagrees, candidate);

  const { credit, flip, candidates } = view.data.view;
  const counts = [
    [view.tokens.length, "generated"],
    [Object.keys(credit.exact ?? {}).length, "measured"],
    [Object.values(flip).filter(Boolean).length, "refeed disagrees"],
    [candidates.length, "low margin"],
  ];
  const said = counts.map(([count, what]) => `${count.toLocaleString("en")} ${what}`).join(" · ");
  const place = view.root.querySelector(".counts");
  if (place.textContent !== said) place.textContent = said;
}

// ---- moving about --------------------------------------------------------------------------------------------------

const at = (view, position) => view.tokens[position - view.data.view.prompt];

function select(view, position) {
  if (view.selected !== null) at(view, view.selected)?.setAttribute("aria-selected", "false");
  view.selected = position;
  if (position !== null) at(view, position)?.setAttribute("aria-selected", "true");
}

function activate(view, position, scroll) {
  if (view.tokens.length === 0) return;
  const { prompt } = view.data.view;
  position = clamp(position, prompt, prompt + view.tokens.length - 1);
  if (view.active !== null) at(view, view.active)?.classList.remove("active");
  view.active = position;
  const token = at(view, position);
  token.classList.add("active");
  view.box.setAttribute("aria-activedescendant", token.id);
  if (scroll === "page") token.scrollIntoView({ block: "nearest" });
  if (scroll === "box") centre(view, token);
}

// Scrolls the tokens alone: a selection that comes from outside must not move the reader's page.
function centre(view, token) {
  const box = view.box.getBoundingClientRect(), place = token.getBoundingClientRect();
  if (place.top >= box.top && place.bottom <= box.bottom) return;
  view.box.scrollTop += place.top - box.top - view.box.clientHeight / 2;
}

function pick(view, position) {
  select(view, position);
  activate(view, position, "page");
  view.pending.push(position); // shown at once; confirmed when Python sends it back
  view.send(position);
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
  const here = view.active - view.data.view.prompt;
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
  return view.data.view.prompt + best;
}

function page(view, direction) {
  const target = at(view, view.active).getBoundingClientRect().top + direction * view.box.clientHeight * 0.9;
  return view.data.view.prompt + firstBelow(view, target);
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
    const { text, prompt } = view.data.view;
    view.starts = [];
    let all = "";
    for (const token of text.slice(prompt)) {
      view.starts.push(all.length);
      all += token.toLowerCase();
    }
    view.haystack = all;
  }
  const after = view.active === null ? 0 : view.starts[view.active - view.data.view.prompt] + 1;
  let hit = view.haystack.indexOf(needle, after);
  if (hit < 0) hit = view.haystack.indexOf(needle); // from the top again
  if (hit < 0) return null;
  return view.data.view.prompt + view.starts.findLastIndex((start) => start <= hit);
}

function onKey(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || view.tokens.length === 0) return;
  if (event.key === "/") {
    event.preventDefault();
    return view.finder.focus();
  }
  if (view.active === null) activate(view, view.selected ?? view.data.view.prompt, null);
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
  activate(view, position, "page");
  tip(view, view.active);
}

function onFind(view, event) {
  event.stopPropagation(); // the page's own one-letter shortcuts are not meant here
  if (event.key !== "Enter") return;
  event.preventDefault();
  const needle = view.finder.value.toLowerCase();
  const position = needle === "" ? null : find(view, needle);
  view.finder.classList.toggle("none", needle !== "" && position === null);
  if (position !== null) {
    activate(view, position, "page");
    tip(view, position);
  }
}

// ---- tooltip -------------------------------------------------------------------------------------------------------

function tip(view, position) {
  if (position === null) return void (view.tip.hidden = true);
  const { text, prompt, raw, credit, margin, alternative, flip, delta } = view.data.view;
  const lines = [element("div", "head", `${JSON.stringify(text[position])}${raw[position] ? `  bytes ${raw[position]}` : ""}`)];
  const row = (label, value, note) => lines.push(element("span", "label", label), element("span", "value", value), element("span", "note", note));
  const wide = (label, value, kind = "") => lines.push(element("span", "label", label), element("span", `wide ${kind}`, value));
  wide("position", `${position}, generated ${position - prompt}`);
  const exact = credit.exact?.[position];
  const passes = Object.keys(credit).filter((name) => credit[name][position] !== undefined);
  for (const name of passes) {
    const value = credit[name][position];
    let note = "";
    if (name === "replica" && exact !== undefined) note = `floor ${Math.abs(value - exact).toFixed(2)}`;
    if (name === "refeed" && exact !== undefined) note = `Δ ${signed(delta[position])}${flip[position] ? ", disagrees" : ""}`;
    row(name, signed(value), note);
  }
  if (passes.length === 0) wide("credit", "not measured");
  if (margin[position] !== undefined) row("margin", margin[position].toFixed(3), "nats");
  if (alternative[position] !== undefined) wide("alternative", JSON.stringify(alternative[position]), "quoted");
  if (view.special.has(position)) wide("kind", "special token");
  view.tip.replaceChildren(...lines);
  view.tip.hidden = false;

  const frame = view.frame.getBoundingClientRect(), place = at(view, position).getClientRects()[0];
  const left = clamp(place.left - frame.left, 0, Math.max(0, frame.width - view.tip.offsetWidth));
  const below = place.bottom - frame.top + 6;
  const fits = place.bottom + 6 + view.tip.offsetHeight < window.innerHeight;
  view.tip.style.left = `${left}px`;
  view.tip.style.top = `${fits ? below : place.top - frame.top - view.tip.offsetHeight - 6}px`;
}

// ---- several transcripts that scroll together ----------------------------------------------------------------------

function lead(view) {
  const { group } = view.data;
  if (!group || view.tokens.length === 0 || performance.now() < view.followingUntil) return;
  const index = firstBelow(view, view.box.getBoundingClientRect().top);
  document.dispatchEvent(new CustomEvent(SCROLL, { detail: { group, index, source: view.box } }));
}

function trail(view, { group, index, source }) {
  if (group !== view.data.group || source === view.box || view.tokens.length === 0) return;
  const token = view.tokens[Math.min(index, view.tokens.length - 1)];
  view.followingUntil = performance.now() + 150; // its own scroll event is an echo, not the reader
  view.box.scrollTop += token.getBoundingClientRect().top - view.box.getBoundingClientRect().top;
}

// ---- mounting ------------------------------------------------------------------------------------------------------

function mount(root) {
  const view = {
    root, data: null, revision: null, tokens: [], stops: [], selected: null, active: null,
    followed: null, pending: [], followingUntil: 0, send: () => {},
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
    if (view.active === null) activate(view, view.selected ?? view.data.view.prompt, null);
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
  return view;
}

export default function ({ data, parentElement: root, setTriggerValue }) {
  let view = VIEWS.get(root);
  if (!view) VIEWS.set(root, (view = mount(root)));
  const colour = view.data?.colour;
  view.data = data;
  view.send = (position) => setTriggerValue("pick", position);
  view.frame.style.setProperty("--gain", data.intensity);
  view.frame.style.setProperty("--height", `${data.height}px`);
  if (view.revision !== data.rev) {
    view.revision = data.rev;
    build(view);
    paint(view);
  } else if (colour !== data.colour) {
    paint(view);
  }
  follow(view, data.selected);
  return () => {
    document.removeEventListener(SCROLL, view.onScroll);
    VIEWS.delete(root);
  };
}
