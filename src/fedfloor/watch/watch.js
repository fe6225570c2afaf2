"use strict";
// Shows a run's state and its changes. Texts come from files written by machines and are only inserted as text.
(() => {
  const $ = (id) => document.getElementById(id);
  const SHOWN = 30;  // rounds in the table
  const LINES = 200;
  const state = { rounds: [], log: [], trips: [], devices: [], factories: [], links: [], troubles: [], processes: [], runs: [], run: {} };
  let skew = Infinity;  // s that this clock is ahead of the server's

  const make = (tag, attributes = {}, ...children) => {
    const node = tag === "svg" || make.svg.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  make.svg = new Set(["line", "polyline", "circle", "text"]);

  const figure = (value, digits = 4) => value == null ? "–" : Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 })
    : Number(value.toPrecision(digits)).toString();
  const seconds = (value) => {
    if (value == null) return "–";
    if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
    const minutes = Math.floor(value / 60);
    return minutes < 60 ? `${minutes} min ${Math.round(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };
  const WELL = ["serving", "fetching", "empty", "waiting"];  // states of a device that predicts
  const clock = (at) => new Date(typeof at === "number" ? at * 1000 : at).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const bytes = (value) => {
    if (value == null) return "–";
    const power = value < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
    return `${Number((value / 1000 ** power).toPrecision(4))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
  };
  const share = (value) => value == null ? "–" : `${(value * 100).toFixed(1)} %`;
  const ratio = (measured, predicted) => measured == null || !predicted ? "–" : `${(measured / predicted * 100).toFixed(1)} %`;
  const many = (number, noun, plural) => `${number.toLocaleString("en")} ${number === 1 ? noun : plural ?? noun + "s"}`;

  const lost = (row) => row.visits == null ? row.lost : `${row.lost} of ${row.visits}`;

  // rows: lists of cells; a cell is a text, or [text, class]. A column without any content is left out
  const table = (id, names, every, empty) => {
    const text = (cell) => String(Array.isArray(cell) ? cell[0] : cell);
    const used = names.map((_, i) => !i || every.some((row) => text(row[i]) !== "–"));
    const [head, ...rows] = [names, ...every].map((row) => row.filter((_, i) => used[i]));
    const wordy = new Set(rows.flatMap((row) => row.map((cell, i) => (Array.isArray(cell) && cell[1].includes("words") ? i : 0))));
    const cells = (row) => row.map((cell, i) => {
      const link = Array.isArray(cell) && cell[2];
      const inner = link ? make("a", { href: link }, text(cell)) : text(cell);
      const node = make(i ? "td" : "th", i ? { "data-label": head[i] } : { scope: "row" }, inner);
      if (Array.isArray(cell) && cell[1]) node.className = cell[1];
      return node;
    });
    const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))));
    const top = make("thead", {}, make("tr", {}, ...head.map((name, i) => make("th", { scope: "col", ...(i && wordy.has(i) ? { class: "words" } : {}) }, name))));
    $(id).replaceChildren(...(rows.length ? [top, body] : [make("caption", {}, empty)]));
  };

  // after Okabe and Ito's palette, as in reports
  const COLOURS = ["#2b7bd1", "#d55e00", "#0b9b74", "#b06ac4", "#b58500", "#39a5dc", "#d4467f", "#75808c"];
  const DASHES = ["", "7 4", "2 4", "9 3 2 3"];

  // round numbers from low to high, about `most` of them
  const ticks = (low, high, most, whole = false) => {
    const raw = (high - low) / most || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = Math.max(whole ? 1 : 0, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999));
    const from = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.floor(high / step + 1e-9) - from + 1 }, (_, i) => Number(((from + i) * step).toPrecision(12)));
  };

  // series: [{ name, points: [[round, value], …], colour, dash }]; the values under the pointer are written below
  const curve = (id, name, series) => {
    const drawn = series.map((one) => ({ ...one, points: one.points.filter(([, value]) => value != null) })).filter((one) => one.points.length);
    if (!drawn.length) { $(id).replaceChildren(make("figcaption", {}, `${name}: no round has one yet`)); return; }
    const [width, height, left, bottom, top, right] = [Math.max(280, $(id).clientWidth), 230, 60, 40, 12, 14];
    const rounds = drawn.flatMap((one) => one.points.map(([round]) => round));
    const values = drawn.flatMap((one) => one.points.map(([, value]) => value));
    const [first, last] = [Math.min(...rounds), Math.max(...rounds, Math.min(...rounds) + 1)];
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.05, high + Math.abs(high || 1) * 0.05];
    const marks = ticks(low, high, 4);
    const step = marks.length > 1 ? marks[1] - marks[0] : high - low;
    if (low < marks[0]) marks.unshift(Number((marks[0] - step).toPrecision(12)));
    if (high > marks.at(-1)) marks.push(Number((marks.at(-1) + step).toPrecision(12)));
    [low, high] = [marks[0], marks.at(-1)];
    const x = (round) => left + (round - first) / (last - first) * (width - left - right);
    const y = (value) => height - bottom - (value - low) / (high - low) * (height - bottom - top);
    const told = drawn.map((one) => `${one.name}: ${figure(one.points[0][1])} in round ${one.points[0][0]}, ${figure(one.points.at(-1)[1])} in round ${one.points.at(-1)[0]}`);
    const svg = make("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told.join("; ") });
    for (const value of marks) {
      svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        make("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, Math.abs(value) >= 1e6 ? value.toExponential(1) : String(value)));
    }
    for (const round of ticks(first, last, 6, true)) svg.append(make("text", { x: x(round), y: height - bottom + 16, "text-anchor": "middle" }, String(round)));
    svg.append(make("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "round"));
    for (const one of drawn) {
      const dash = one.dash ? { "stroke-dasharray": one.dash } : {};
      svg.append(make("polyline", { stroke: one.colour, ...dash, points: one.points.map(([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
      const [round, value] = one.points.at(-1);
      svg.append(make("circle", { cx: x(round), cy: y(value), r: 3.5, fill: one.colour }));
    }
    const rule = make("line", { class: "rule", x1: 0, x2: 0, y1: top, y2: height - bottom });
    svg.append(rule);
    const caption = make("figcaption", { class: "legend" });
    const legend = (round) => {
      const parts = drawn.map((one) => {
        const point = round == null ? one.points.at(-1) : one.points.find(([number]) => number === round);
        const key = make("svg", { class: "key", viewBox: "0 0 26 8", "aria-hidden": "true" }, make("line", { x1: 1, x2: 25, y1: 4, y2: 4, stroke: one.colour, ...(one.dash ? { "stroke-dasharray": one.dash } : {}) }));
        return make("span", {}, key, ` ${one.name} `, make("b", {}, point ? figure(point[1]) : "–"));
      });
      caption.replaceChildren(make("span", {}, round == null ? `${name}, last round: ` : `${name}, round ${round}: `), ...parts);
    };
    legend();
    const known = [...new Set(rounds)];
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = first + ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * (last - first);
      const round = known.reduce((best, one) => Math.abs(one - at) < Math.abs(best - at) ? one : best);
      rule.setAttribute("x1", x(round)); rule.setAttribute("x2", x(round)); rule.setAttribute("class", "rule shown");
      legend(round);
    });
    svg.addEventListener("pointerleave", () => { rule.setAttribute("class", "rule"); legend(); });
    $(id).replaceChildren(svg, caption);
  };

  // the curves of all runs, or of the only one
  const several = (column) => state.runs.map((run, i) => ({ name: run.name, points: run.points.map((point) => [point[0], point[column]]), colour: COLOURS[i % COLOURS.length], dash: DASHES[i % DASHES.length] }));
  const single = (key, name, i = 0) => ({ name, points: state.rounds.map((row) => [row.round, row[key]]), colour: COLOURS[i], dash: DASHES[i] });
  const curves = () => {
    const name = state.run.headline ?? "accuracy";
    curve("curve-value", name, state.runs.length ? several(1) : [single("value", "global model")]);
    curve("curve-loss", "loss", state.runs.length ? several(2) : [single("loss", "test data"), single("train_loss", "in training", 1)]);
  };

  const draw = {
    run() {
      const run = state.run;
      document.title = `${run.name} – fedfloor`;
      $("name").textContent = run.name;
      const about = [run.method && `${run.method}, seed ${run.seed}`, run.data && `data ${run.data}`,
        run.devices && `${many(run.devices, "device")} in ${many(run.factories, "factory", "factories")}`, run.live ? "real machines" : "simulation"];
      $("about").textContent = about.filter(Boolean).join(" · ");
      $("progress").value = run.rounds ? run.round / run.rounds : 0;
      tick();
    },
    rounds() {
      const name = state.run.headline ?? "accuracy";
      curves();
      const rows = state.rounds.slice(-SHOWN).reverse().map((row) => [row.round, figure(row.value), figure(row.loss), figure(row.train_loss),
        row.participants ?? "–", [row.lost ? lost(row) : row.lost ?? "–", row.lost ? "bad" : ""], seconds(row.wall_s), seconds(row.predicted_s)]);
      table("rounds", ["round", name, "loss", "train loss", "devices trained", "visits lost", "took here", "predicted"], rows, "No round is done yet.");
      draw.links();
    },
    links() {
      const last = state.rounds.at(-1);
      const live = state.run.live;
      const rows = [];
      if (last) {
        const measured = live ? last.wall_s : null;
        const spent = (key) => state.rounds.some((row) => row[key] != null) ? seconds(state.run[key]) : "–";
        if (last.predicted_s != null || measured != null) rows.push(["time", seconds(last.predicted_s), seconds(measured), ratio(measured, last.predicted_s), spent("predicted_s"), live ? spent("wall_s") : "–"]);
        if (last.floor_s != null) rows.push(["… of the slowest factory", "–", seconds(last.floor_s), "–", "–", "–"]);
        if (last.training_s != null) rows.push(["… that all devices trained, together", "–", seconds(last.training_s), "–", "–", "–"]);
      }
      for (const row of state.links) {
        rows.push([row.link.replaceAll("_", " "), bytes(row.predicted), bytes(row.measured), ratio(row.measured, row.predicted), bytes(row.predicted_all), bytes(row.measured_all)]);
      }
      table("costs", ["", "predicted, last round", "measured, last round", "measured of predicted", "predicted, all rounds", "measured, all rounds"], rows, last ? "" : "No round is done yet.");
      const notes = [!last ? "" : live ? "" : `A simulation's network is not measured; the last round was computed here in ${seconds(last.wall_s)}.`,
        last && last.predicted_s == null && "No network is set in the experiment, so times and bytes are not predicted."];
      $("costs-note").textContent = notes.filter(Boolean).join(" ");
    },
    // visits of rounds that do not wait for all devices: a bar for each, by the age of its model; late ones are dashed
    trips() {
      const rows = state.trips.filter((row) => row.end > 0);
      $("s-trips").hidden = !rows.length;
      if (!rows.length) return;
      const names = [...new Map(rows.map((row) => [row.device, row.name])).entries()].sort(([a], [b]) => a - b);
      const [width, step, top, bottom, right] = [Math.max(280, $("trips").clientWidth), 18, 8, 40, 14];
      const left = 24 + 7 * Math.max(...names.map(([, name]) => Math.min(name.length, 24)));
      const height = top + bottom + step * names.length;
      const [first, last] = [Math.min(...rows.map((row) => row.begin)), Math.max(...rows.map((row) => row.ended))];
      const x = (time) => left + (time - first) / (last - first || 1) * (width - left - right);
      const y = new Map(names.map(([device], i) => [device, top + step * (i + 0.5)]));
      const svg = make("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${many(rows.length, "visit")} of ${many(names.length, "device")} in time` });
      for (const time of ticks(first, last, 6)) {
        svg.append(make("line", { class: "grid", x1: x(time), x2: x(time), y1: top, y2: height - bottom }),
          make("text", { x: x(time), y: height - bottom + 16, "text-anchor": "middle" }, String(time)));
      }
      svg.append(make("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, state.run.live ? "seconds of the machines" : "time"));
      for (const [device, name] of names) svg.append(make("text", { x: left - 8, y: y.get(device) + 4, "text-anchor": "end" }, name.slice(0, 24)));
      const ages = [1, 3, 10];
      for (const row of rows) {
        const [at, late] = [y.get(row.device), row.age == null];
        const colour = late ? "#b58500" : COLOURS[ages.filter((age) => row.age >= age).length];
        const line = (begin, end, more) => make("line", { x1: x(begin), x2: x(end), y1: at, y2: at, ...more });
        const [from, to] = row.training.length ? row.training : [row.begin, row.end];
        if (row.training.length) svg.append(line(row.begin, row.end, { stroke: "#c3cad2", "stroke-width": 8 }));
        svg.append(line(from, to, { stroke: colour, "stroke-width": late ? 3 : 8, ...(late ? { "stroke-dasharray": "3 3" } : {}) }));
        if (row.ended > row.end) svg.append(line(row.end, row.ended, { stroke: "#9aa3ad", "stroke-width": 1 }));
      }
      $("trips").replaceChildren(svg);
      const late = rows.some((row) => row.age == null);
      $("trips-note").textContent = `Every bar is a visit, from the departure of the model to the arrival of its result; then a thin line until its round ended. Blue: it started from the present model; orange, green, violet: from one that is 1, 3, 10 models old or more.${rows.some((row) => row.training.length) ? " Grey: the model or the result is on its way." : ""}${late ? " Dashed: too late for its round, so that it does not count." : ""}`;
    },
    devices() {
      const rows = state.devices.map((row) => [[row.name, "", `#device-${row.device}`], state.factories[row.factory]?.name ?? row.factory, row.samples.toLocaleString("en"), row.visits, [row.lost, row.lost ? "bad" : ""],
        figure(row.loss), share(row.accuracy), seconds(row.seconds), machine(row.machine), [row.why || "–", row.why ? "words bad" : "words"]]);
      table("devices", ["device", "factory", "samples", "visits", "lost", "train loss", "train accuracy", "predicted", "machine", "refused or failed"], rows, "The park is not described yet.");
      $("devices-title").textContent = rows.length ? `Devices (${rows.length})` : "Devices";
      mark();
      page();
    },
    runs() {
      $("s-runs").hidden = !state.runs.length;
      const rows = state.runs.map((run) => [run.name, run.method ?? "–", run.seed ?? "–", run.state, `${run.round}${run.rounds == null ? "" : ` of ${run.rounds}`}`, figure(run.value)]);
      table("runs", ["run", "method", "seed", "state", "round", state.run.headline ?? "accuracy"], rows, "");
      curves();
    },
    factories() {
      const rows = state.factories.map((row) => [row.name, row.devices, row.visited, [row.lost, row.lost ? "bad" : ""], figure(row.loss),
        seconds(row.seconds), row.absent ? [`in round ${row.absent}`, "bad"] : "–", machine(row.machine)]);
      table("factories", ["factory", "devices", "visited", "lost visits", "mean train loss", "predicted, slowest", "absent", "edge"], rows, "The park is not described yet.");
    },
    troubles() {
      const rows = state.troubles.map((row) => [row.round == null ? "–" : `round ${row.round}`, [row.who, "words"], [row.kind, "bad"], [row.why || "–", "words"]]);
      table("troubles", ["when", "who", "what", "why"], rows, "Nothing was lost or refused so far.");
    },
    serving() {
      const { serving } = state;
      const ever = Boolean(serving.devices);
      const only = state.run.state === "waiting";  // a park's page, without a run
      $("s-serving").hidden = !ever && !only;
      $("training").hidden = $("progress").hidden = $("now").hidden = only;
      if (only) {
        document.title = `${serving.park ?? state.run.name} – fedfloor`;
        $("name").textContent = serving.park ?? state.run.name;
        $("about").textContent = ever ? `${many(serving.total, "device")} in ${many(serving.factories.length, "factory", "factories")}` : "";
      }
      const away = (serving.factories ?? []).filter((row) => !row.reached).map((row) => `${row.factory} (${row.broker})`);
      const stale = ever ? `Not up to date: alarms were kept last at ${clock(serving.last)}.` : "No alarms are kept yet.";
      $("brokers").textContent = !serving.kept ? `${stale} The command fedfloor model alarms --park PARK --follow keeps them.`
        : away.length ? `Not connected: the broker of ${away.join(", ")}.` : `Connected to the ${many(serving.factories.length, "broker")}.`;
      $("brokers").className = serving.kept && !away.length ? "soft" : "bad";
      const alarmed = (serving.devices ?? []).filter((row) => row.alarms);
      const named = alarmed.slice(0, 5).map((row) => row.device).join(", ");
      $("alarmed").hidden = !serving.alarming;
      $("alarmed").textContent = `${serving.alarming} of ${many(serving.total ?? 0, "device")} in alarm: ${named}${serving.alarming > 5 ? " and others" : ""}`;
      const rows = (serving.devices ?? []).map((row) => [row.device, [row.factory, "words name"], row.version ?? "–",
        [row.state, `words name${WELL.includes(row.state) ? "" : " bad"}`], [row.alarm || "–", row.alarm ? "words bad" : "words"], row.since ? clock(row.since) : "–", [row.why || "–", "words"]]);
      table("serving", ["device", "factory", "version", "state", "alarm", "since", "reason"], rows, "No device has reported yet.");
    },
    alarms() {
      const rows = state.alarms.map((row) => [clock(row.at), [row.device, "words name"], [row.factory, "words name"], [row.alarm, "words"], [row.place || "–", "words"], row.messages]);
      table("alarms", ["when", "device", "factory", "alarm", "from", "messages"], rows, "No alarm was kept yet.");
    },
    processes() {
      $("s-processes").hidden = !state.processes.length;
      const rows = state.processes.map((row) => [row.name, row.kind, machine(row.state), row.memory_mb == null ? "–" : `${row.memory_mb} MB`]);
      table("processes", ["process", "kind", "state", "memory"], rows, "");
      mark();
    },
    log() {
      $("s-log").hidden = !state.log.length;
      const box = $("log").parentElement;
      const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
      $("log").replaceChildren(...state.log.map((row) => make("li", {}, make("b", {}, `${new Date(row.at * 1000).toLocaleTimeString()} ${row.from} `), row.text)));
      if (atEnd) box.scrollTop = box.scrollHeight;
    },
    plan() {
      const picture = new DOMParser().parseFromString(state.plan.svg, "image/svg+xml").documentElement;
      $("s-plan").hidden = false;
      $("plan").replaceChildren(document.importNode(picture, true));
      $("plan").scrollLeft = ($("plan").scrollWidth - $("plan").clientWidth) / 2;  // at the cloud
      mark();
    },
  };

  // a page per device, at #device-NUMBER
  const page = async () => {
    const number = /^#device-(\d+)$/.exec(location.hash)?.[1];
    const row = state.devices.find((one) => String(one.device) === number);
    $("s-device").hidden = !row;
    if (!row) return;
    $("device-name").textContent = row.name;
    const facts = [`factory ${state.factories[row.factory]?.name ?? row.factory}`, many(row.samples, "sample"), `${many(row.visits, "visit")} in the last round, ${row.lost} lost`,
      row.loss == null ? "" : `loss in training ${figure(row.loss)}`, row.accuracy == null ? "" : `accuracy in training ${share(row.accuracy)}`, row.machine ?? "", row.why];
    $("device-about").textContent = facts.filter(Boolean).join(" · ");
    const rows = state.troubles.filter((one) => one.who === row.name).map((one) => [one.round == null ? "–" : `round ${one.round}`, [one.kind, "bad"], [one.why || "–", "words"]]);
    table("device-troubles", ["when", "what", "why"], rows, "Nothing of this device was refused or failed so far.");
    const answer = await fetch(`device/${number}`);
    if (!answer.ok) return;
    const { rounds, tested } = await answer.json();
    curve("curve-tested", `${state.run.headline ?? "accuracy"} of the model on this device`, [{ name: row.name, points: tested, colour: COLOURS[0] }]);
    curve("curve-device", "loss in training", [{ name: row.name, points: rounds.map(([round, loss]) => [round, loss]), colour: COLOURS[0] }]);
  };
  addEventListener("hashchange", async () => { await page(); if (!$("s-device").hidden) $("s-device").scrollIntoView(); });

  const machine = (text) => [text ?? "–", text === "dead" ? "bad" : text === "at work" ? "fine" : ""];

  // outlines the plan's devices by their records
  const mark = () => {
    const by = new Map(state.devices.map((row) => [row.name, row]));
    for (const group of $("plan").querySelectorAll("g")) {
      const title = group.querySelector(":scope > title")?.textContent;
      const row = title && by.get(title.slice(0, title.lastIndexOf(": ")));
      if (!row) continue;
      group.setAttribute("class", row.machine === "at work" ? "working" : row.machine === "dead" ? "dead" : row.why ? "failed" : row.lost ? "lost" : "");
    }
    const lossy = state.devices.filter((row) => row.lost).length;
    const marks = [lossy && `Dashed orange: a visit of round ${state.run.receipts_of} was lost (${many(lossy, "device")}).`,
      state.processes.length && "Thick blue: the device's process is at work now; thick orange: it is dead, or its work failed."];
    $("legend").textContent = ["The drawing is of the first round.", state.run.same_plan && "The last rounds had the same plan.", ...marks].filter(Boolean).join(" ");
  };

  // updates times once a second
  const tick = () => {
    const run = state.run;
    if (!run.state) return;
    const known = run.value == null ? "" : `${run.headline} ${figure(run.value)}`;
    const total = run.rounds == null ? "" : ` of ${run.rounds}`;
    const under = run.state === "running" && run.round !== run.rounds;
    const ahead = skew === Infinity ? 0 : skew;
    const elapsed = Math.max(0, Date.now() / 1000 - ahead - (run.since ?? Date.now() / 1000));
    const usual = run.round_s == null ? "" : ` of about ${seconds(run.round_s)}`;
    const words = {
      running: run.waits ? `Round ${run.round + 1}${total} waits since ${clock(run.waits.since)}, until ${clock(run.waits.until)} at most: ${run.waits.why}`
        : under ? `Round ${run.round + 1}${total} is under way: ${seconds(Math.round(elapsed))}${usual}` : "All rounds are done; the run is being evaluated",
      waiting: "The run has not begun yet", finished: `Finished after round ${run.round}`, stopped: `Stopped after round ${run.round}${total}`,
      diverged: `Diverged after round ${run.round}${total}`, failed: `Failed after round ${run.round}${total}: ${run.why}`, "not running": `Not running: round ${run.round}${total} was the last`,
    };
    const untrained = run.untrained ? `${many(run.untrained, "device")} never trained so far: ${run.untrained_names}` : "";
    const left = under && run.left_s ? `about ${seconds(run.left_s)} left` : "";
    $("now").textContent = [words[run.state], known, run.lost ? `${many(run.lost, "visit")} lost` : "", untrained, left].filter(Boolean).join(" · ");
    const working = state.devices.filter((row) => row.machine === "at work").map((row) => row.name);
    const where = !under || run.waits ? "" : working.length ? `The model is at ${working.slice(0, 12).join(", ")}${working.length > 12 ? " and others" : ""}.`
      : run.live ? "No device is at work at the moment: the model is on its way, or where models meet."
      : "A simulation does not record where in a round it is.";
    $("place").textContent = [under ? `Round ${run.round + 1} ${run.waits ? "waits for devices" : "is under way"}.` : "", where].filter(Boolean).join(" ");
  };

  const take = (changes) => {
    const { append = {}, at, ...sections } = changes;
    if (at) skew = Math.min(skew, Date.now() / 1000 - at);
    Object.assign(state, sections);
    for (const [name, rows] of Object.entries(append)) state[name] = [...state[name], ...rows];
    state.log = state.log.slice(-LINES);
    const order = ["run", "runs", "rounds", "trips", "links", "factories", "devices", "troubles", "processes", "log", "plan", "serving", "alarms"];
    for (const name of order) if (name in sections || name in append) draw[name]();
    if ("run" in sections && state.serving) draw.serving();
    if (append.rounds) $("announced").textContent = `Round ${state.run.round} is done.`;
    tick();
    document.documentElement.dataset.round = state.run.round ?? 0;
    document.documentElement.dataset.seen = String(Date.now());
  };

  const source = new EventSource("events");
  const link = (text, lost) => { $("link").textContent = text; $("link").className = lost ? "lost" : ""; };
  source.addEventListener("open", () => link("connected", false));
  source.addEventListener("error", () => link(`no connection since ${new Date().toLocaleTimeString()}; trying again`, true));
  for (const kind of ["state", "change"]) source.addEventListener(kind, (event) => take(JSON.parse(event.data)));
  setInterval(tick, 1000);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width && state.rounds.length) { width = innerWidth; draw.rounds(); draw.trips(); } });
})();
