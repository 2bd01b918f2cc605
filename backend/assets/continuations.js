// Draws continuations side by side. Their text is a model's output: it goes into the page by textContent only.

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

const OUTCOMES = { right: "right", wrong: "wrong", truncated: "truncated, counts as wrong", ungraded: "not graded" };

function facts(cell) {
  const row = element("div", "facts");
  row.append(element("span", `outcome ${cell.outcome}`, OUTCOMES[cell.outcome]));
  row.append(element("span", "answer", cell.answer === null ? "no answer" : `answer ${cell.answer}`));
  row.append(element("span", "finish", `${cell.text.length} tokens, ${cell.finish}`));
  if (!cell.reference && cell.difference === null) row.append(element("span", "identical", "= identical to exact"));
  return row;
}

function text(cell) {
  const body = element("div", "text");
  if (cell.reference) {
    body.textContent = cell.text.join("");
    return body;
  }
  const cut = cell.difference ?? cell.text.length;
  body.append(element("span", "same", cell.text.slice(0, cut).join("")));
  if (cell.difference === null) return body;
  const ended = cut >= cell.text.length;
  body.append(element("span", "flag", ended ? `first difference: ends here (${cut})` : `first difference (${cut})`));
  if (!ended) body.append(element("span", "differs", cell.text[cut]), element("span", "rest", cell.text.slice(cut + 1).join("")));
  return body;
}

function header(content) {
  const row = element("tr");
  const corner = element("th", "", "arm");
  corner.scope = "col";
  row.append(corner);
  for (const name of content.passes) {
    const cell = element("th", "", name);
    cell.scope = "col";
    const here = content.rows.filter((r) => r.cells[name]);
    const right = (arm) => here.filter((r) => r.arm === arm && r.cells[name].outcome === "right").length;
    const of = (arm) => here.filter((r) => r.arm === arm).length;
    const said = ["actual", "alternative"].filter(of).map((arm) => `${arm} ${right(arm)} of ${of(arm)}`);
    cell.append(element("span", "score", said.join(" · ")));
    row.append(cell);
  }
  const head = element("thead");
  head.append(row);
  return head;
}

function rows(content) {
  const body = element("tbody");
  let arm = null;
  for (const row of content.rows) {
    const line = element("tr", row.arm === arm ? "" : "first");
    const label = element("th");
    label.scope = "row";
    if (row.arm !== arm) label.append(element("span", "arm", row.arm), element("span", "token", JSON.stringify(row.token)));
    label.append(element("span", "sample", `sample ${row.sample}`));
    line.append(label);
    for (const name of content.passes) {
      const place = element("td");
      const cell = row.cells[name];
      if (cell) place.append(facts(cell), text(cell));
      else place.append(element("span", "pending", "not computed yet"));
      line.append(place);
    }
    body.append(line);
    arm = row.arm;
  }
  return body;
}

const DRAWN = new WeakMap(); // root → the content it shows

export default function ({ data, parentElement: root }) {
  const frame = root.querySelector(".continuations");
  frame.style.setProperty("--height", `${data.height}px`);
  if (DRAWN.get(root) === data.rev) return;
  DRAWN.set(root, data.rev);
  // Texts open at their first difference; a reader who scrolled keeps the place in the table.
  const { scrollTop } = frame;
  const content = JSON.parse(data.content);
  root.querySelector("table").replaceChildren(header(content), rows(content));
  frame.scrollTop = scrollTop;
  for (const flag of root.querySelectorAll(".flag")) {
    const box = flag.closest(".text");
    box.scrollTop = flag.offsetTop - box.offsetTop - box.clientHeight / 3;
  }
}
