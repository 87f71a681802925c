"use strict";
// Draws the views and the edge table of every card from the JSON in #data. Text always goes in through
// textContent or setAttribute, never as HTML.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const KEPT = 2, DROPPED = 1, SILENT = 0;
  const DRAW_AT_ONCE = 20;      // cards beyond these are drawn when they come near the window
  const LABELLED_EDGES = 30;    // with more kept edges, type labels would cover the drawing
  const ROOM = 600;             // nodes and names among which room for one more is looked for
  const HEAD = "M0 0L-10 -4.6L-7.6 0L-10 4.6Z";
  const SAMPLES = Array.from({ length: 31 }, (_, i) => (i + 1) / 32);  // points of an edge that a name should not cover
  const ALL_ROWS_UP_TO = 24;    // with more nodes, the unrolled view leaves out those without a kept message

  const make = (name, attributes = {}, parent = null, text = null, space = null) => {
    const element = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== null) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const draw = (name, attributes, parent, text = null) => make(name, attributes, parent, text, SVG);
  // A layer by name, without its class where there is no room for both.
  const short = (name, length) => cut(name.length > length ? name.replace(/ \(\w+\)$/, "") : name, length);
  const cut = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

  const parsed = JSON.parse(document.getElementById("data").textContent);
  const cards = [...document.querySelectorAll(".card")].map((element) => {
    const data = parsed[Number(element.dataset.card)];
    const edges = data.edges.map(([id, source, target, type, bend, state, scores, gold]) => (
      { id, source, target, type, bend, state, scores, gold }));
    const nodes = data.nodes.map(([id, x, y, label, loop]) => ({ id, x, y, label, loop }));
    return {
      element, data, edges, nodes, layer: null, selected: null, drawn: false, graphEdges: [], hops: [], arcs: [], lines: [],
      edge: new Map(edges.map((e) => [e.id, e])), node: new Map(nodes.map((n) => [n.id, n])),
    };
  });

  const nameOf = (card, v) => (card.node.has(v) ? card.node.get(v).label : card.data.names[v] ?? String(v));
  const isAsked = (card, v) => Boolean(card.data.asked?.includes(v));
  const typeOf = (card, e) => (e.type < 0 ? "" : card.data.types[e.type][0]);
  const styleOf = (card, e) => (e.type < 0 ? "c0 d0" : card.data.types[e.type][1]);
  const fate = (state) => ["no message", "dropped", "kept"][state];
  // Some layers send messages from the target of an edge to its source.
  const backward = (card, site) => Boolean(card.data.reverse?.[site]);
  const ends = (card, e, site) => (backward(card, site) ? [e.target, e.source] : [e.source, e.target]);
  const sitesOf = (card, layer) => (layer === null ? card.data.sites.map((_, s) => s) : [layer]);
  const describe = (card, e, site = null) => {
    const [from, to] = ends(card, e, site ?? 0);
    const mixed = site === null && card.data.reverse?.includes(0);
    const lines = [`${nameOf(card, from)} ${mixed ? "↔" : "→"} ${nameOf(card, to)}` + (e.type < 0 ? "" : `  (${typeOf(card, e)})`)];
    card.data.sites.forEach((name, s) => {
      if (site !== null && s !== site) return;
      const right = e.gold && e.state[s] !== SILENT && e.gold[s] ? ", right answer" : "";
      lines.push(`${name}: ` + (e.state[s] === SILENT ? "no message" : `${fate(e.state[s])}, score ${e.scores[s]}${right}`));
    });
    return lines.join("\n");
  };

  // ---- graph view -------------------------------------------------------------------------------------------

  const geometry = (card, e, r) => {
    const a = card.node.get(e.source), b = card.node.get(e.target);
    if (a === b) {  // a loop; further loops of the same node reach further out
      const reach = r * (3.4 + e.bend), spread = 0.5 + 0.1 * e.bend;
      const at = (angle, d) => [a.x + Math.cos(angle) * d, a.y + Math.sin(angle) * d];
      const [p, c1, c2, q] = [at(a.loop - spread, r), at(a.loop - spread, reach), at(a.loop + spread, reach), at(a.loop + spread, r + 5)];
      return { d: `M${p}C${c1} ${c2} ${q}`, tips: [[at(a.loop + spread, r + 1), a.loop + spread + Math.PI]], names: [at(a.loop, reach * 0.8)], points: [1.2, 1.8, 2.4].map((d) => at(a.loop, r * d)) };
    }
    const dx = b.x - a.x, dy = b.y - a.y, length = Math.hypot(dx, dy) || 1;
    const side = e.bend * Math.min(26, length * 0.3);
    const mx = (a.x + b.x) / 2 - (dy / length) * side, my = (a.y + b.y) / 2 + (dx / length) * side;
    const out = Math.atan2(my - a.y, mx - a.x), back = Math.atan2(my - b.y, mx - b.x);
    const along = (t) => [[a.x, mx, b.x], [a.y, my, b.y]].map(([p, q, s]) => (1 - t) ** 2 * p + 2 * t * (1 - t) * q + t * t * s);
    const on = (node, angle, d) => [(node.x + Math.cos(angle) * d).toFixed(1), (node.y + Math.sin(angle) * d).toFixed(1)];
    return {
      d: `M${on(a, out, card.data.reverse ? r + 7 : r)}Q${mx.toFixed(1)} ${my.toFixed(1)} ${on(b, back, r + 7)}`,
      tips: [[on(b, back, r + 1.5), back + Math.PI], ...(card.data.reverse ? [[on(a, out, r + 1.5), out + Math.PI]] : [])],
      names: namePoints(card, e, along, dx, dy, r),
      points: SAMPLES.map(along),
    };
  };

  // Where the name of an edge's type may stand, best first. On the edge, if its head and its tail stay in sight: nearer to
  // the head, so that opposite edges do not write over each other; in columns, where many run into one node, nearer to
  // the tail. Else beside it.
  const namePoints = (card, e, along, dx, dy, r) => {
    if (card.data.box[3]) return [along(e.bend ? 0.64 : 0.42)];
    const length = Math.hypot(dx, dy) || 1, cos = dx / length, sin = dy / length;
    const [w, h] = nameSize(card, e), half = Math.min(w / Math.abs(cos), h / Math.abs(sin)) / 2;
    const first = (r + 4 + half) / length, last = 1 - (r + 14 + half) / length;
    const on = first > last ? [] : [e.bend ? 0.64 : 0.5, 0.5, last, first].map((t) => along(Math.min(Math.max(t, first), last)));
    const aside = ((Math.abs(sin) * w + Math.abs(cos) * h) / 2 + 3) * (e.bend < 0 ? -1 : 1);
    const beside = (t, side) => [along(t)[0] - sin * side, along(t)[1] + cos * side];
    return [...on, ...[0.5, 0.36, 0.64].flatMap((t) => [beside(t, aside), beside(t, -aside)])];
  };

  const nameSize = (card, e) => [5.7 * Math.min(typeOf(card, e).length, 14) + 4, 13];

  // The first of them that covers no node and no other name, or the fewest; of kept edges alone, others show no name.
  const nameOfType = (card, e, points, others) => {
    const [w, h] = nameSize(card, e), box = ([x, y]) => [x - w / 2, y - h / 2, w, h];
    if (!e.state.includes(KEPT) || others.length > ROOM) return points[0];
    let best = points[0], least = Infinity;
    for (const at of points) {
      const covered = others.filter((other) => overlap(other, box(at))).length;
      if (covered < least) [best, least] = [at, covered];
    }
    others.push(box(best));
    return best;
  };

  const overlap = (a, b) => a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3];

  // Where a node's name hides least: a kept edge counts for more than all that are dropped, and another node or its name
  // (boxes of [left, top, width, height]) for more than a kept edge.
  const freeSide = (n, edges, r, width, others) => {
    const w = 6.6 * Math.min(n.label.length, 14), h = 15;
    const sides = { below: [-w / 2, r + 2], above: [-w / 2, -r - 2 - h], after: [r + 5, -h / 2], before: [-r - 5 - w, -h / 2] };
    let best = "below", least = Infinity;
    for (const [side, [x, y]] of Object.entries(sides)) {
      if (side !== "below" && (n.x + x < 0 || n.x + x + w > width || n.y + y < 0)) continue;
      const inside = ([px, py]) => px > n.x + x && px < n.x + x + w && py > n.y + y && py < n.y + y + h;
      const hidden = edges.filter(([, points]) => points.some(inside)).map(([state]) => (state === KEPT ? edges.length + 1 : 1));
      const covered = others.filter((box) => overlap(box, [n.x + x + 2, n.y + y + 1, w - 4, h - 2])).length;
      const cost = hidden.reduce((a, b) => a + b, 1.5 * covered * (edges.length + 1));
      if (cost < least) [best, least] = [side, cost];
    }
    const [x, y] = sides[best];
    others.push([n.x + x + 2, n.y + y + 1, w - 4, h - 2]);
    return best;
  };

  const drawGraph = (card) => {
    const [width, height, r, columns] = card.data.box;
    const holder = card.element.querySelector("[data-view=graph]");
    if (!holder) return;
    const picture = draw("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Graph" }, holder);
    picture.style.cssText = `max-width:${width * 1.35}px;min-width:${width * 0.65}px`;
    const bonds = card.data.bonds && draw("g", { class: "bonds", role: "img", "aria-label": "Bonds of the molecule" }, picture);
    for (const [x0, y0, x1, y1, dashed] of card.data.bonds ?? []) draw("path", { class: dashed ? "dashed" : "", d: `M${x0} ${y0}L${x1} ${y1}` }, bonds);
    const layers = ["halo", "faint", "strong", "text"].map((name) => draw("g", { class: name }, picture));
    const near = new Map(card.nodes.map((n) => [n.id, []]));  // what runs into each node, and where
    for (const e of card.edges) {
      if (e.bend === null || (card.data.crowded && !e.state.includes(KEPT))) continue;
      const g = geometry(card, e, r);
      const group = draw("g", { class: "edge " + styleOf(card, e), "data-edge": e.id, "data-tip": describe(card, e) }, layers[1]);
      const halo = e.gold ? draw("path", { class: "gold", d: g.d }, layers[0]) : null;
      draw("path", { class: "hit", d: g.d }, group);
      if (e.type >= 0 && card.data.types[e.type][2]) draw("path", { class: "casing", d: g.d }, group);
      draw("path", { class: "line", d: g.d }, group);
      const heads = g.tips.map(([tip, angle]) => {
        const turn = draw("g", { transform: `translate(${tip}) rotate(${((angle * 180) / Math.PI).toFixed(1)})` }, group);
        draw("path", { class: "head", d: HEAD }, turn);
        return turn;
      });
      const label = draw("text", { class: "edge-label" }, layers[3], cut(typeOf(card, e), 14));
      card.graphEdges.push({ e, group, halo, label, heads, strong: layers[2], faint: layers[1], names: g.names });
      for (const v of new Set([e.source, e.target])) near.get(v).push([Math.max(...e.state), g.points]);
    }
    const inside = card.nodes.every((n) => n.label.length <= 3);
    const left = Math.min(...card.nodes.map((n) => n.x)), right = Math.max(...card.nodes.map((n) => n.x));
    const covered = card.nodes.map((n) => [n.x - r, n.y - r, 2 * r, 2 * r]);
    for (const n of card.nodes) {
      const beside = columns && n.x === left ? "before" : columns && n.x === right ? "after" : freeSide(n, near.get(n.id), r, width, covered);
      drawNode(card, picture, n, n.x, n.y, r, inside ? "inside" : beside);
    }
    for (const { e, label, names } of card.graphEdges) {
      const [x, y] = nameOfType(card, e, names, covered);
      label.setAttribute("x", x.toFixed(1));
      label.setAttribute("y", (y + 3.5).toFixed(1));
    }
    roving(picture);
  };

  const drawNode = (card, picture, n, x, y, r, where, column = null) => {
    const count = (card.data.paths?.[n.id] ?? []).length;
    const asked = isAsked(card, n.id), word = asked ? `${n.label} (asked about)` : n.label;
    const group = draw("g", { class: asked ? "node asked" : "node", "data-node": n.id, transform: `translate(${x} ${y})`, "data-tip": word }, picture);
    if (column !== null) group.dataset.column = column;
    if (card.data.paths) {
      group.setAttribute("role", "button");
      group.setAttribute("tabindex", "-1");
      group.setAttribute("aria-label", `node ${word}, ${plural(count, "retained path")}`);
      group.dataset.tip = `${word}\n${plural(count, "retained path")} end${count === 1 ? "s" : ""} here`;
    }
    draw("circle", { class: "reach", r: r + (column === null ? 8 : 4) }, group);  // fingers are wider than nodes
    if (asked && (column === null || column === card.data.sites.length)) draw("circle", { class: "ring", r: r + 4 }, group);
    draw("circle", { r }, group);
    if (where === "inside") draw("text", { y: r * 0.32, "font-size": r * (n.label.length > 2 ? 0.72 : 0.86) }, group, n.label);
    const outside = { below: [0, r + 13, "middle"], above: [0, -r - 6, "middle"], before: [-r - 6, 4, "end"], after: [r + 6, 4, "start"] }[where];
    if (outside) draw("text", { class: "outside", x: outside[0], y: outside[1], "text-anchor": outside[2] }, group, cut(n.label, 14));
  };

  // One tab stop per drawing; arrow keys move between its nodes.
  const roving = (picture) => {
    const stops = [...picture.querySelectorAll(".node[tabindex]")];
    stops[0]?.setAttribute("tabindex", "0");
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const at = stops.indexOf(document.activeElement);
      if (!step || at < 0) return;
      event.preventDefault();
      stops[at].setAttribute("tabindex", "-1");
      const next = stops[(at + step + stops.length) % stops.length];
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  };

  // ---- question view: drawn by question.py; here it learns to answer to layers and selections ------------------

  const wireQuestion = (card) => {
    const picture = card.element.querySelector("svg.question");
    if (!picture) return;
    for (const title of picture.querySelectorAll("title")) {
      const group = title.parentNode;
      group.dataset.tip = title.textContent;
      title.remove();
    }
    for (const group of card.data.paths ? picture.querySelectorAll(".node") : []) {
      const count = (card.data.paths[group.dataset.node] ?? []).length;
      group.setAttribute("role", "button");
      group.setAttribute("tabindex", "-1");
      group.dataset.tip += `\n${plural(count, "retained path")} end${count === 1 ? "s" : ""} here`;
      group.setAttribute("aria-label", group.dataset.tip);
    }
    card.lines = [...picture.querySelectorAll("[data-hops]")].map((group) => ({ group, hops: group.dataset.hops.split(" ") }));
    roving(picture);
  };

  const droppedToo = (holder) => Boolean(holder.closest(".view").querySelector(".show-dropped")?.checked);

  // ---- sentence view: words in a row, arcs above, roles below; placed by sentence.py ---------------------------

  const drawSentence = (card) => {
    const holder = card.element.querySelector("[data-view=sentence]");
    if (!holder) return;
    const { words, predicate, kept, all } = card.data.sentence, plan = (droppedToo(holder) && all) || kept;
    const [width, height, base] = plan.box;
    holder.replaceChildren();
    card.arcs = [];
    const picture = draw("svg", { class: "sentence", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Sentence" }, holder);
    picture.style.cssText = `max-width:${width}px;min-width:${width * 0.72}px`;  // shrinks a little, then scrolls
    const layers = ["faint", "strong", "text"].map((name) => draw("g", { class: name }, picture));
    for (const [ids, left, right, top, middle, text] of plan.arcs) {
      const edges = ids.map((id) => card.edge.get(id)), down = base - 5, r = Math.min(14, (right - left) / 2, down - top);
      const d = `M${left} ${down}V${top + r}Q${left} ${top} ${left + r} ${top}H${right - r}Q${right} ${top} ${right} ${top + r}V${down}`;
      const group = draw("g", { "data-edges": ids, "data-tip": edges.map((e) => describe(card, e)).join("\n") }, layers[0]);
      const halo = edges[0].gold ? draw("path", { class: "gold", d }, group) : null;
      draw("path", { class: "hit", d }, group);
      draw("path", { class: "casing", d }, group);
      draw("path", { class: "line", d }, group);
      const heads = [];
      for (const e of edges) {
        const ways = new Set(card.data.sites.map((_, s) => (e.source < e.target) !== backward(card, s)));
        if (e.source === e.target) ways.clear(), ways.add(true);
        for (const way of ways) {  // true: to the right
          const turn = draw("g", { class: "end", "data-edge": e.id, transform: `translate(${way ? right : left} ${base - 1}) rotate(90)` }, group);
          draw("path", { class: "head", d: HEAD }, turn);
          heads.push({ e, way, turn });
        }
      }
      const label = draw("text", { class: "edge-label", x: middle, y: top - 4 }, layers[2], text);
      card.arcs.push({ edges, group, halo, heads, label, text, faint: layers[0], strong: layers[1] });
    }
    words.forEach((word, v) => {
      const [x, box] = plan.words[v], count = (card.data.paths?.[v] ?? []).length, lead = v === predicate ? "predicate " : "";
      const group = draw("g", { class: "node word" + (lead && " predicate"), "data-node": v, transform: `translate(${x} ${base})`, "data-tip": lead + word }, picture);
      if (card.data.paths) {
        group.setAttribute("role", "button");
        group.setAttribute("tabindex", "-1");
        group.setAttribute("aria-label", `${lead}word ${v + 1}, ${word}, ${plural(count, "retained path")}`);
        group.dataset.tip += `\n${plural(count, "retained path")} end${count === 1 ? "s" : ""} here`;
      }
      draw("rect", { x: -box / 2, y: 1, width: box, height: 25, rx: 5 }, group);
      draw("text", { y: 18.5 }, group, cut(word, 24));
    });
    for (const [left, right, top, middle, label] of plan.roles) {
      const group = draw("g", { class: "role", "data-tip": label }, picture);
      draw("path", { d: `M${left} ${top - 5}v5H${right}v-5` }, group);
      draw("text", { x: middle, y: top + 15 }, group, label);
    }
    roving(picture);
  };

  const paintArc = (card, arc, lit) => {
    const sites = sitesOf(card, card.layer);
    const fates = arc.edges.map((e) => Math.max(...sites.map((s) => e.state[s]), SILENT));
    const state = Math.max(...fates), first = arc.edges[fates.indexOf(state)];
    const right = arc.edges.some((e) => sites.some((s) => e.gold?.[s] && e.state[s] !== SILENT));
    let isLit = false;
    for (const { e, way, turn } of arc.heads) {
      const mine = sites.filter((s) => e.source === e.target || ((e.source < e.target) !== backward(card, s)) === way);
      const own = Math.max(...mine.map((s) => e.state[s]), SILENT), on = mine.some((s) => lit.has(`${s}:${e.id}`));
      turn.setAttribute("class", `end ${["silent", "dropped", "kept"][own]}${on ? " lit" : ""}`);
      // A head of a dropped direction would make a kept arc look as if it ran both ways.
      turn.toggleAttribute("hidden", own === SILENT || own < state);
      isLit ||= on;
    }
    arc.group.setAttribute("class", `edge arc ${styleOf(card, first)} ${["silent", "dropped", "kept"][state]}${isLit ? " lit" : ""}`);
    arc.halo?.toggleAttribute("hidden", !right);
    (state === KEPT ? arc.strong : arc.faint).append(arc.group);
    const types = [...new Set(arc.edges.filter((_, i) => fates[i] === KEPT).map((e) => typeOf(card, e)))];
    arc.label.textContent = card.layer === null ? arc.text : types.map((t) => cut(t, 14)).join(" / ");
    arc.label.classList.toggle("lit", isLit);
    arc.label.toggleAttribute("hidden", state !== KEPT || !arc.text);
    // On one layer, what only other layers keep is out of the way.
    arc.group.toggleAttribute("hidden", state === SILENT || (state === DROPPED && !droppedToo(arc.group)));
  };

  // ---- unrolled view: one column of nodes before, between and after the layers -------------------------------

  const drawUnrolled = (card) => {
    const holder = card.element.querySelector("[data-view=unrolled]");
    const everything = droppedToo(holder);
    const lines = [];
    for (const e of card.edges) if (e.bend !== null) e.state.forEach((state, site) => state !== SILENT && lines.push({ e, site, state }));
    const shown = lines.filter((l) => everything || l.state === KEPT);
    const touched = new Set(shown.flatMap((l) => [l.e.source, l.e.target]));
    const all = everything || card.data.rows.length <= ALL_ROWS_UP_TO;
    const rows = card.data.rows.filter((v) => all || touched.has(v) || v === card.selected || isAsked(card, v));
    holder.replaceChildren();
    card.hops = [];
    if (!rows.length) return void make("p", { class: "empty" }, holder, "No message is kept.");
    const layers = card.data.sites.length, step = rows.length <= 24 ? 27 : 18, r = rows.length <= 24 ? 7 : 5, top = 46;
    const longest = Math.max(...rows.map((v) => Math.min(14, nameOf(card, v).length)));
    const gutter = 22 + longest * 7.4, gap = Math.max(92, Math.min(300, (Math.min(470, holder.clientWidth || 470) - 2 * gutter) / layers));
    const width = 2 * gutter + layers * gap, height = top + rows.length * step;
    const x = (column) => gutter + column * gap, y = new Map(rows.map((v, i) => [v, top + (i + 0.5) * step]));
    const picture = draw("svg", { class: "unrolled", viewBox: `0 0 ${width.toFixed(0)} ${height}`, role: "group", "aria-label": "Unrolled layers" }, holder);
    picture.style.cssText = `max-width:${width * 1.2}px;min-width:${width * 0.75}px`;
    card.data.sites.forEach((name, s) => {
      const heading = draw("text", { class: "site", x: x(s) + gap / 2, y: 16, "data-tip": name }, picture, short(name, Math.floor(gap / 7)));
      heading.id = `site-${card.element.dataset.card}-${s}`;
      draw("path", { class: "span", d: `M${x(s) + 8} 24H${x(s + 1) - 8}m-4 -3l4 3l-4 3` }, picture);
    });
    for (const v of rows) {
      draw("path", { class: "guide", d: `M${x(0)} ${y.get(v)}H${x(layers)}` }, picture);
      for (const [anchor, at] of [["end", x(0) - r - 7], ["start", x(layers) + r + 7]])
        draw("text", { class: "row", "text-anchor": anchor, x: at, y: y.get(v) + 4 }, picture, cut(nameOf(card, v), 14));
    }
    for (const { e, site, state } of shown.sort((a, b) => a.state - b.state)) {
      const [x0, x1] = [x(site) + r, x(site + 1) - r], pull = (x1 - x0) * 0.45;
      const [y0, y1] = ends(card, e, site).map((v) => y.get(v)), shift = e.source === e.target ? e.bend * 5 : e.bend * 4;
      const d = `M${x0} ${y0}C${x0 + pull} ${y0 + shift} ${x1 - pull} ${y1 + shift} ${x1} ${y1}`;
      const group = draw("g", { class: `edge hop ${styleOf(card, e)} ${fate(state)}`, "data-edge": e.id, "data-site": site, "data-tip": describe(card, e, site) }, picture);
      draw("path", { class: "hit", d }, group);
      if (e.type >= 0 && card.data.types[e.type][2]) draw("path", { class: "casing", d }, group);
      draw("path", { class: "line", d }, group);
      card.hops.push({ e, site, group });
    }
    for (let column = 0; column <= layers; column++)
      for (const v of rows) drawNode(card, picture, card.node.get(v), x(column), y.get(v), r, "none", column);
    roving(picture);
  };

  // ---- state -> classes ---------------------------------------------------------------------------------------

  const paint = (card) => {
    const { layer, selected } = card;
    const paths = selected === null ? [] : card.data.paths?.[selected] ?? [];
    const lit = new Set(paths.flat().map(([site, edge]) => `${site}:${edge}`));
    card.element.classList.toggle("selecting", selected !== null);
    const bold = card.graphEdges.filter(({ e }) => (layer === null ? e.state.includes(KEPT) : e.state[layer] === KEPT)).length;
    for (const arc of card.arcs) paintArc(card, arc, lit);
    for (const { e, group, halo, label, heads, strong, faint } of card.graphEdges) {
      const state = layer === null ? Math.max(...e.state, SILENT) : e.state[layer];
      for (const s of [KEPT, DROPPED, SILENT]) group.classList.toggle(["silent", "dropped", "kept"][s], s === state);
      const isLit = sitesOf(card, layer).some((s) => lit.has(`${s}:${e.id}`));
      if (heads.length > 1) heads.forEach((head, i) => head.toggleAttribute("hidden", !sitesOf(card, layer).some((s) => e.state[s] === state && backward(card, s) === (i === 1))));
      group.classList.toggle("lit", isLit);
      (state === KEPT || isLit ? strong : faint).append(group);  // bold edges lie on top
      label.classList.toggle("lit", isLit);
      label.toggleAttribute("hidden", state !== KEPT || bold > LABELLED_EDGES);
      halo?.toggleAttribute("hidden", !(layer === null ? e.gold.some((g, s) => g && e.state[s] !== SILENT) : e.gold[layer] && state !== SILENT));
    }
    for (const { e, site, group } of card.hops) {
      group.classList.toggle("lit", lit.has(`${site}:${e.id}`));
      group.classList.toggle("off", layer !== null && layer !== site);
    }
    for (const { group, hops } of card.lines) {
      group.classList.toggle("lit", hops.some((hop) => lit.has(hop)));
      group.classList.toggle("off", layer !== null && !hops.some((hop) => hop.startsWith(`${layer}:`)));
    }
    const touched = new Set(), cells = new Set();
    for (const [site, id] of paths.flat()) {
      const e = card.edge.get(id);
      if (!e) continue;
      const [from, to] = ends(card, e, site);
      if (layer === null || layer === site) touched.add(from).add(to);
      cells.add(`${site}:${from}`).add(`${site + 1}:${to}`);
    }
    for (const node of card.element.querySelectorAll(".node")) {
      const v = Number(node.dataset.node), column = node.dataset.column;
      const end = v === selected && (column === undefined || Number(column) === card.data.sites.length);
      node.classList.toggle("lit", end || (column === undefined ? touched.has(v) : cells.has(`${column}:${v}`)));
      node.classList.toggle("chosen", end);
      if (card.data.paths) node.setAttribute("aria-pressed", String(v === selected));
    }
    tell(card, paths);
  };

  const tell = (card, paths) => {
    const status = card.element.querySelector(".status");
    if (!status) return;
    if (card.selected === null) return void (status.textContent = "Select a node to see the retained paths that end in it; Escape clears.");
    const words = paths.slice(0, 8).map((path) => path.map(([site, id], i) => {
      const e = card.edge.get(id);
      if (!e) return i ? " → ?" : "? → ?";
      const [from, to] = ends(card, e, site);
      return (i ? "" : nameOf(card, from)) + " → " + nameOf(card, to);
    }).join(""));
    const more = paths.length > 8 ? `; and ${paths.length - 8} more` : "";
    const name = nameOf(card, card.selected);
    status.textContent = paths.length
      ? `${plural(paths.length, "retained path")} end${paths.length === 1 ? "s" : ""} in ${name}: ${words.join("; ")}${more}`
      : `No retained path ends in ${name}.`;
  };

  // ---- edge table, built when it is first opened --------------------------------------------------------------

  const drawTable = (card) => {
    const holder = card.element.querySelector(".table-holder");
    if (holder.firstChild) return;
    const table = make("table", { class: "edge-table" }, holder);
    const header = make("tr", {}, make("thead", {}, table)), body = make("tbody", {}, table);
    const typed = card.data.types.length > 0;
    const score = (e, s) => (e.state[s] === SILENT ? -1 : e.scores[s]);
    const columns = [
      ["edge", (e) => card.data.numbers?.[e.id] ?? e.id], ["source", (e) => nameOf(card, e.source)], ["target", (e) => nameOf(card, e.target)],
      ...(typed ? [["type", (e) => typeOf(card, e)]] : []),
      ...card.data.sites.map((name, s) => [name, (e) => score(e, s)]),
    ];
    const rows = card.data.table.map((id) => {
      const e = card.edge.get(id), row = make("tr", { "data-edge": id });
      make("td", { class: "num" }, row, card.data.numbers?.[id] ?? id);
      make("td", {}, row, nameOf(card, e.source));
      make("td", {}, row, nameOf(card, e.target));
      if (typed) {
        const cell = make("td", { class: "type" }, row);
        make("span", { class: `dot ${styleOf(card, e)}` }, cell);
        cell.append(typeOf(card, e));
      }
      card.data.sites.forEach((name, s) => scoreCell(row, e, s));
      return { e, row };
    });
    columns.forEach(([name, value], index) => {
      const cell = make("th", { scope: "col", "aria-sort": index ? "none" : "ascending" }, header);
      make("button", { type: "button" }, cell, name).addEventListener("click", () => {
        // Scores are most interesting from the top, names from A.
        const first = index >= columns.length - card.data.sites.length ? "descending" : "ascending";
        const now = cell.getAttribute("aria-sort");
        const next = now === "none" ? first : now === "ascending" ? "descending" : "ascending";
        for (const other of header.children) other.setAttribute("aria-sort", "none");
        cell.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        rows.sort((a, b) => sign * compare(value(a.e), value(b.e)) || a.e.id - b.e.id);
        body.append(...rows.map((r) => r.row));
      });
    });
    body.append(...rows.map((r) => r.row));
  };

  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));

  const scoreCell = (row, e, s) => {
    const cell = make("td", { class: "score " + ["silent", "dropped", "kept"][e.state[s]] }, row);
    if (e.state[s] === SILENT) return void make("span", { class: "none", title: "no message at this layer" }, cell, "–");
    const bar = make("span", { class: "bar", "aria-hidden": "true" }, cell);
    make("i", {}, bar).style.width = `${100 * e.scores[s]}%`;
    make("span", { class: "digits" }, cell, e.scores[s].toFixed(2));
    make("span", { class: "mark" }, cell, e.state[s] === KEPT ? "✓ kept" : "dropped");
    if (e.gold) make("span", { class: "star", title: e.gold[s] ? "right answer" : "" }, cell, e.gold[s] ? "★ right" : "");
  };

  // ---- wiring -------------------------------------------------------------------------------------------------

  const show = (card) => {
    if (card.drawn) return;
    card.drawn = true;
    drawSentence(card);
    wireQuestion(card);
    drawGraph(card);
    drawUnrolled(card);
    paint(card);
  };
  const select = (card, node) => {
    card.selected = node;
    paint(card);
  };
  for (const card of cards) {
    const { element } = card;
    const chosen = (event) => (card.data.paths ? event.target.closest?.(".node") : null);
    const toggle = (node) => select(card, Number(node.dataset.node) === card.selected ? null : Number(node.dataset.node));
    element.addEventListener("click", (event) => {
      const node = chosen(event), button = event.target.closest("[data-layer]");
      if (node) toggle(node);
      if (!button) return;
      card.layer = button.dataset.layer === "" ? null : Number(button.dataset.layer);
      for (const b of element.querySelectorAll("[data-layer]")) b.setAttribute("aria-pressed", String(b === button));
      paint(card);
    });
    element.addEventListener("keydown", (event) => {
      const node = chosen(event);
      if (!node || (event.key !== "Enter" && event.key !== " ")) return;
      event.preventDefault();
      toggle(node);
    });
    for (const box of element.querySelectorAll(".show-dropped"))
      box.addEventListener("change", () => {
        (box.closest(".view").querySelector("[data-view=sentence]") ? drawSentence : drawUnrolled)(card);
        paint(card);
      });
    element.querySelector("details").addEventListener("toggle", () => drawTable(card));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const card of cards) if (card.selected !== null) select(card, null);
  });

  cards.slice(0, DRAW_AT_ONCE).forEach(show);
  const watcher = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) show(cards.find((c) => c.element === target));
  }, { rootMargin: "800px" });
  for (const card of cards.slice(DRAW_AT_ONCE)) watcher.observe(card.element);
  // Paper does not scroll: everything must be there.
  window.addEventListener("beforeprint", () => cards.forEach(show));
  matchMedia("print").addEventListener("change", (event) => event.matches && cards.forEach(show));

  const tip = document.getElementById("tip");
  const place = (event) => {
    const target = event.target.closest?.("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const box = target.getBoundingClientRect();
    const [px, py] = event.clientX === undefined ? [box.right, box.bottom] : [event.clientX, event.clientY];
    tip.style.left = `${Math.max(8, Math.min(px + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${py + 18 + tip.offsetHeight > innerHeight ? py - tip.offsetHeight - 12 : py + 18}px`;
  };
  for (const kind of ["pointermove", "focusin"]) document.addEventListener(kind, place);
  for (const kind of ["pointerleave", "focusout", "scroll"]) document.addEventListener(kind, () => { tip.hidden = true; }, true);

  const tools = document.getElementById("tools");
  if (!tools) return;
  const arrange = () => {
    const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const key = document.getElementById("sort").value;
    let visible = 0;
    for (const card of cards) {
      card.element.hidden = !words.every((word) => card.data.search.includes(word));
      visible += card.element.hidden ? 0 : 1;
    }
    const value = (card) => card.data.sort[Number(key)] ?? Infinity;
    const sign = key === "1" || key === "3" ? -1 : 1;  // the worst first
    const order = key === "" ? cards : [...cards].sort((a, b) => sign * compare(value(a), value(b)) || 0);
    document.getElementById("cards").append(...order.map((card) => card.element));
    document.getElementById("count").textContent = visible === cards.length ? plural(visible, "example") : `${visible} of ${plural(cards.length, "example")}`;
    document.getElementById("nothing").hidden = visible > 0;
  };
  tools.addEventListener("input", arrange);
  tools.addEventListener("submit", (event) => event.preventDefault());
})();
