"use strict";
// Shows a run's state and its changes. Texts come from files written by machines and are only inserted as text.
(() => {
  const $ = (id) => document.getElementById(id);
  const SHOWN = 30;  // rounds in the table
  const LINES = 200;
  const state = { rounds: [], log: [], devices: [], factories: [], links: [], troubles: [], processes: [], run: {} };
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
      const node = make(i ? "td" : "th", i ? { "data-label": head[i] } : { scope: "row" }, text(cell));
      if (Array.isArray(cell) && cell[1]) node.className = cell[1];
      return node;
    });
    const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))));
    const top = make("thead", {}, make("tr", {}, ...head.map((name, i) => make("th", { scope: "col", ...(i && wordy.has(i) ? { class: "words" } : {}) }, name))));
    $(id).replaceChildren(...(rows.length ? [top, body] : [make("caption", {}, empty)]));
  };

  const curve = (id, name, keys, words) => {
    const rounds = state.rounds.filter((row) => keys.some((key) => row[key] != null));
    const values = rounds.flatMap((row) => keys.map((key) => row[key])).filter((value) => value != null);
    if (!values.length) { $(id).replaceChildren(make("figcaption", {}, `${name}: no round has one yet`)); return; }
    const [width, height, left, bottom, top, right] = [Math.max(280, $(id).clientWidth), 230, 56, 26, 12, 14];
    const [first, last] = [rounds[0].round, Math.max(rounds.at(-1).round, rounds[0].round + 1)];
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.05, high + Math.abs(high || 1) * 0.05];
    const x = (round) => left + (round - first) / (last - first) * (width - left - right);
    const y = (value) => height - bottom - (value - low) / (high - low) * (height - bottom - top);
    const told = `${name}: ${figure(values[0])} in round ${first}, ${figure(rounds.at(-1)[keys[0]])} in round ${rounds.at(-1).round}`;
    const svg = make("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told });
    const decimals = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10((high - low) / 4))));
    for (let i = 0; i <= 4; i++) {
      const value = low + (high - low) * i / 4;
      svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        make("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, Math.abs(value) >= 1e6 ? value.toExponential(1) : value.toFixed(decimals)));
    }
    for (const round of new Set([first, Math.round((first + last) / 2), last])) {
      svg.append(make("text", { x: x(round), y: height - 6, "text-anchor": round === last ? "end" : "middle" }, `round ${round}`));
    }
    keys.forEach((key, i) => {
      const points = rounds.filter((row) => row[key] != null).map((row) => [x(row.round), y(row[key])]);
      svg.append(make("polyline", { class: i ? "second" : "first", points: points.map((point) => point.map((one) => one.toFixed(1)).join()).join(" ") }));
      if (!i && points.length) svg.append(make("circle", { cx: points.at(-1)[0], cy: points.at(-1)[1], r: 4 }));
    });
    const caption = make("figcaption", {}, `${words[0]}: `, make("b", {}, figure(rounds.at(-1)[keys[0]])));
    if (keys[1]) caption.append("; ", make("span", { class: "second" }, `${words[1]}: ${figure(rounds.at(-1)[keys[1]])} (dashed)`));
    $(id).replaceChildren(svg, caption);
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
      curve("curve-value", name, ["value"], [`${name} of the global model`]);
      curve("curve-loss", "loss", ["loss", "train_loss"], ["loss on the test data", "in training"]);
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
        rows.push(["seconds", seconds(last.predicted_s), seconds(measured), ratio(measured, last.predicted_s), spent("predicted_s"), live ? spent("wall_s") : "–"]);
        if (last.floor_s != null) rows.push(["… of the slowest factory", "–", seconds(last.floor_s), "–", "–", "–"]);
        if (last.training_s != null) rows.push(["… that all devices trained, together", "–", seconds(last.training_s), "–", "–", "–"]);
      }
      for (const row of state.links) {
        rows.push([row.link.replaceAll("_", " "), bytes(row.predicted), bytes(row.measured), ratio(row.measured, row.predicted), bytes(row.predicted_all), bytes(row.measured_all)]);
      }
      table("costs", ["", "predicted, last round", "measured, last round", "measured of predicted", "predicted, all rounds", "measured, all rounds"], rows, "No round is done yet.");
      const notes = [!last ? "" : live ? "" : `A simulation's network is not measured; the last round was computed here in ${seconds(last.wall_s)}.`,
        last && last.predicted_s == null && "Without a [network] table in its experiment the run predicts nothing."];
      $("costs-note").textContent = notes.filter(Boolean).join(" ");
    },
    devices() {
      const rows = state.devices.map((row) => [row.name, state.factories[row.factory]?.name ?? row.factory, row.samples.toLocaleString("en"), row.visits, [row.lost, row.lost ? "bad" : ""],
        figure(row.loss), figure(row.accuracy), seconds(row.seconds), machine(row.machine), [row.why || "–", row.why ? "words bad" : "words"]]);
      table("devices", ["device", "factory", "samples", "visits", "lost", "train loss", "train accuracy", "predicted", "machine", "refused or failed"], rows, "The park is not described yet.");
      mark();
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
    const marks = [state.run.receipts_of && `Dashed orange: a visit of round ${state.run.receipts_of} was lost.`,
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
    const order = ["run", "rounds", "links", "factories", "devices", "troubles", "processes", "log", "plan", "serving", "alarms"];
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
  addEventListener("resize", () => { if (innerWidth !== width && state.rounds.length) { width = innerWidth; draw.rounds(); } });
})();
