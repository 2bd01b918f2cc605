// What the tokens look like: their text, their colour, the legend, the tooltip. A token's text is somebody else's: it goes
// into the page by textContent only. (`transcript.js` follows in the same script: what the reader does with them.)

const BLOCK = 256; // tokens a block, at least: the browser skips the layout of blocks out of sight
const LONGEST_BLOCK = 1024;

const signed = (x) => (x > 0 ? "+" : x < 0 ? "−" : "") + Math.abs(x).toFixed(2);
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const at = (view, position) => view.tokens[position - view.content.prompt];

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
  const { text, prompt } = view.content;
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

  const measured = Object.values(view.content.credit).flatMap((credits) => Object.keys(credits).map(Number));
  view.stops = [...new Set([...measured, ...view.content.candidates])].filter((p) => p >= prompt).sort((a, b) => a - b);
  view.candidates = new Set(view.content.candidates);
  view.special = new Set(view.content.special);
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
  const { content, colour } = view;
  view.tokens.forEach((token, index) => {
    const position = content.prompt + index;
    const seen = look(content, colour, position);
    const names = ["t"];
    if (seen) names.push("measured", ...seen[0]);
    if (content.flip[position]) names.push("disagrees");
    if (view.candidates.has(position)) names.push("candidate");
    if (view.special.has(position)) names.push("special");
    if (content.parts === position) names.push("parts");
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
  if (content.parts === position) said.push("the texts part here");
  return said.join(", ");
}

const SCALES = {
  credit: { name: "Credit Â", steps: [-1, -0.5, -0.25, 0, 0.25, 0.5, 1] },
  "refeed − exact": { name: "Â refeed − Â exact", steps: [-1, -0.5, -0.25, 0, 0.25, 0.5, 1] },
  margin: { name: "Margin, nats", steps: [0, 0.5, 1, 2, 4] },
  flip: { name: "Sign of Â, refeed against exact", steps: [true, false] },
};

function legend(view) {
  const { colour } = view;
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
  const cues = [disagrees, candidate];
  if (view.content.parts !== null && view.content.parts !== undefined) {
    cues.push(element("span", "cue"));
    cues[2].append(element("span", "t measured parts", "texts part"));
  }
  view.root.querySelector(".legend").replaceChildren(element("span", "name", name), scale, ...cues);

  const { credit, flip, candidates } = view.content;
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

// ---- tooltip -------------------------------------------------------------------------------------------------------

function tip(view, position) {
  if (position === null) return void (view.tip.hidden = true);
  const { text, prompt, raw, credit, margin, alternative, flip, delta } = view.content;
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
  if (view.content.parts === position) wide("text", "parts here from its neighbours'");
  view.tip.replaceChildren(...lines);
  view.tip.hidden = false;

  const frame = view.frame.getBoundingClientRect(), place = at(view, position).getClientRects()[0];
  const left = clamp(place.left - frame.left, 0, Math.max(0, frame.width - view.tip.offsetWidth));
  const below = place.bottom - frame.top + 6;
  const fits = place.bottom + 6 + view.tip.offsetHeight < window.innerHeight;
  view.tip.style.left = `${left}px`;
  view.tip.style.top = `${fits ? below : place.top - frame.top - view.tip.offsetHeight - 6}px`;
}
