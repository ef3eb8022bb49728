// A live debate: the reader's puzzle, the run's model before, after or between, and what it says.
(() => {
  const root = document.getElementById("live");
  if (!root) return;
  const { Model, Tokens, Debate, unpackWeights, mixWeights, promptIds, scoreReply } = DebateSampler;
  const find = (selector) => root.querySelector(selector);
  const make = (tag, kind, ...children) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    made.append(...children.filter((child) => child !== null && child !== ""));
    return made;
  };
  const percent = (share) => {
    const points = 100 * share;
    const isNearAnEnd = points < 9.95 || (points > 99.05 && points < 99.95);
    return `${points.toFixed(isNearAnEnd ? 1 : 0)} %`;
  };
  const signed = (value) => (value > 0 ? "+" : "") + String(value).replace("-", "−");
  const pretty = (signs) => signs.replace(/-/g, "−");
  const pause = () => new Promise((done) => setTimeout(done));

  let data, tokens, weights, cells;
  const state = { run: 0, seed: 1, agent: 0, debate: null, puzzle: null, curve: null };
  const digitInputs = [...root.querySelectorAll("[name=digit]")];
  const totalInput = find("[name=total]");
  const slider = find("[name=share]");
  const share = () => Number(slider.value) / 100;

  const open = () => {
    data = JSON.parse(document.getElementById("live-data").textContent);
    tokens = new Tokens(data.tokens);
    weights = ["before", "after"].map((when) => unpackWeights(data.tensors, data[when]));
    buildTable();
    fill(data.opens);
    play();
  };
  const modelAt = (at) => {
    const mixed = at === 0 ? weights[0] : at === 1 ? weights[1] : mixWeights(...weights, at);
    return new Model(data.model, mixed);
  };

  // The puzzle: what is typed, what signs can make of it, and what is wrong with it.
  const totalOf = (digits, answer) => {
    const signs = (answer || "").split(/\s+/);
    if (signs.length !== digits.length - 1 || !signs.every((sign) => sign === "+" || sign === "-")) return null;
    return signs.reduce((sum, sign, k) => sum + (sign === "+" ? digits[k + 1] : -digits[k + 1]), digits[0]);
  };
  const answersTo = ({ digits, total }) => {
    const all = Array.from({ length: 2 ** (digits.length - 1) }, (_, bits) =>
      digits.slice(1).map((_, k) => ((bits >> k) & 1 ? "-" : "+")).join(" "),
    );
    return { right: all.filter((signs) => totalOf(digits, signs) === total), totals: [...new Set(all.map((signs) => totalOf(digits, signs)))] };
  };
  const readPuzzle = () => {
    const { largest_digit: largest } = data.puzzle;
    const digits = digitInputs.map((input) => (/^[0-9]$/.test(input.value.trim()) ? Number(input.value) : NaN));
    const isDigit = (digit) => digit >= 1 && digit <= largest;
    const typed = totalInput.value.trim().replace("−", "-");
    const total = /^-?[0-9]{1,3}$/.test(typed) ? Number(typed) : NaN;
    digitInputs.forEach((input, k) => input.setAttribute("aria-invalid", String(!isDigit(digits[k]))));
    totalInput.setAttribute("aria-invalid", String(!(total >= 0)));
    if (!digits.every(isDigit)) return tell(`Type ${digits.length} digits from 1 to ${largest}: the model has seen no others.`);
    const { totals } = answersTo({ digits, total });
    const reachable = totals.filter((one) => one >= 0).sort((a, b) => a - b);
    if (!(total >= 0)) return tell("Type a total, a whole number from 0. Signs can make ", reachable);
    if (!tokens.ids.has(` ${total}`)) return tell(`The model has no word for ${total}. Signs can make `, reachable);
    tell("");
    if (!totals.includes(total)) tell(`No signs make ${total}, so every answer is wrong. They can make `, reachable);
    return { digits, total };
  };
  const tell = (text, totals = []) => {
    const choices = totals.map((total) => {
      const button = make("button", "", String(total));
      button.type = "button";
      button.addEventListener("click", () => {
        totalInput.value = String(total);
        play();
      });
      return button;
    });
    find("#live-problem").replaceChildren(text, ...choices);
    return null;
  };
  const questionOf = ({ digits, total }) => {
    const left = [...digits];
    return data.puzzle.words.map((word) => (word === "{total}" ? total : word === "{digit}" ? left.shift() : word)).join(" ");
  };
  const fill = (numbers) => {
    [...digitInputs, totalInput].forEach((input, k) => (input.value = String(numbers[k])));
  };
  const invent = () => {
    const random = (below) => Math.floor(Math.random() * below);
    for (;;) {
      const digits = digitInputs.map(() => 1 + random(data.puzzle.largest_digit));
      const total = totalOf(digits, digits.slice(1).map(() => "+-"[random(2)]).join(" "));
      // As in training, there are no totals below 0.
      if (total >= 0) return fill([...digits, total]);
    }
  };

  // One debate; a newer one ends it.
  const play = async () => {
    const mine = ++state.run;
    const puzzle = readPuzzle();
    root.classList.toggle("stale", puzzle === null);
    if (!puzzle) return;
    const started = performance.now();
    const model = modelAt(share());
    const debate = new Debate(data, tokens, model, questionOf(puzzle));
    Object.assign(state, { puzzle, debate });
    let spent = performance.now() - started;
    for (const prompt of data.form.prompts.flat()) {
      const from = performance.now();
      const turn = debate.play(prompt, state.seed);
      spent += performance.now() - from;
      showAnswer(turn);
      if (turn.agent === state.agent) showReplies();
      await pause();
      if (mine !== state.run) return;
    }
    showDecision();
    find("#live-time").textContent = `This debate took ${(spent / 1000).toFixed(2)} s (seed ${state.seed}).`;
    await drawCurve(model, puzzle, mine);
    root.dataset.played = String(mine);
  };

  // Exact chance of a right first answer: the sum over the right answers, averaged over agents.
  const chanceOf = (model, { digits, total }) => {
    const { form, sampling } = data;
    if (form.sections[0] !== form.answer) return null;
    const { right } = answersTo({ digits, total });
    const debate = new Debate(data, tokens, model, questionOf({ digits, total }));
    const cache = model.newCache();
    let sum = 0;
    for (const prompt of form.prompts[0]) {
      const ids = promptIds(tokens, debate.promptText(prompt), null);
      cache.length = 0;
      model.read(ids.slice(0, -1), cache);
      for (const signs of right) {
        cache.length = ids.length - 1;
        const reply = tokens.encode(`<${form.answer}> ${signs} </${form.answer}>`);
        const logps = scoreReply(model, cache, ids.slice(-1), reply, sampling.temperatures[prompt.agent]);
        sum += Math.exp(logps.reduce((total, logp) => total + logp, 0));
      }
    }
    return sum / form.prompts[0].length;
  };
  const CURVE_POINTS = 9;
  const drawCurve = async (model, puzzle, mine) => {
    const key = questionOf(puzzle);
    find(".live-slide").classList.toggle("impossible", !answersTo(puzzle).right.length);
    const here = chanceOf(model, puzzle);
    if (here === null) return void find(".live-slide").classList.add("impossible");
    find("#live-here").textContent = percent(here);
    const line = find(".live-curve .here");
    for (const end of ["x1", "x2"]) line.setAttribute(end, String(100 * share()));
    if (state.curve === key) return;
    const points = [];
    for (let k = 0; k < CURVE_POINTS; k++) {
      const at = k / (CURVE_POINTS - 1);
      points.push([100 * at, 39 - 38 * chanceOf(modelAt(at), puzzle)]);
      await pause();
      if (mine !== state.run) return;
    }
    const path = `M${points.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join("L")}`;
    find(".live-curve .edge").setAttribute("d", path);
    find(".live-curve .area").setAttribute("d", `${path}L100,40L0,40Z`);
    const shareOf = ([, y]) => percent((39 - y) / 38);
    find("#live-before").textContent = shareOf(points[0]);
    find("#live-after").textContent = shareOf(points[points.length - 1]);
    state.curve = key;
  };

  // The table: a column for each agent, a row for each round, and the votes.
  const buildTable = () => {
    const { agents, rounds } = data.form;
    const row = (kind) => Array.from({ length: agents }, () => make("td", kind));
    const label = (text) => make("tr", "", Object.assign(make("th", "live-label", text), { colSpan: agents, scope: "rowgroup" }));
    cells = { answers: Array.from({ length: rounds }, () => row("live-answer")), votes: row("live-votes") };
    const heads = Array.from({ length: agents }, (_, agent) => {
      const button = make("button", "", `Agent ${agent}`);
      button.type = "button";
      button.addEventListener("click", () => select(agent));
      return Object.assign(make("th", "", button), { scope: "col" });
    });
    const names = rounds === 1 ? ["Answers"] : ["First answers", ...Array.from({ length: rounds - 1 }, (_, k) => (k === rounds - 2 ? "Last answers" : `Answers of round ${k + 2}`))];
    const body = make("tbody", "");
    cells.answers.forEach((answers, round) => {
      body.append(label(names[round]), make("tr", "", ...answers));
      if (round === Math.max(0, rounds - 2)) body.append(label("Votes on them, for minus against"), make("tr", "", ...cells.votes));
    });
    find(".live-agents").replaceChildren(make("thead", "", make("tr", "", ...heads)), body);
    find(".live-agents tbody").addEventListener("click", (event) => {
      const cell = event.target.closest("td");
      if (cell) select(cell.cellIndex);
    });
    markSelected();
  };
  const select = (agent) => {
    state.agent = agent;
    markSelected();
    showReplies();
  };
  const markSelected = () => {
    root.querySelectorAll(".live-agents tr").forEach((row) => {
      [...row.children].forEach((cell, agent) => cell.classList.toggle("chosen", row.children.length > 1 && agent === state.agent));
    });
    root.querySelectorAll(".live-agents thead button").forEach((button, agent) => {
      button.setAttribute("aria-pressed", String(agent === state.agent));
    });
  };
  const verdictOf = (answer) => {
    const { digits, total } = state.puzzle;
    const reached = totalOf(digits, answer);
    return { reached, isRight: reached === total };
  };
  const showAnswer = (turn) => {
    const cell = cells.answers[turn.round][turn.agent];
    const { reached, isRight } = verdictOf(turn.answer);
    const text = turn.failed ? "–" : pretty(turn.answer);
    const result = reached === null ? "unreadable" : `${String(reached).replace("-", "−")} ${isRight ? "✓" : "✗"}`;
    cell.replaceChildren(make("span", "live-signs", text), make("span", `live-reached ${isRight ? "right" : "wrong"}`, result));
    if (turn.round === 0) cells.votes[turn.agent].replaceChildren();
  };
  const showDecision = () => {
    const { debate } = state;
    const { round, standings } = debate.standings();
    const judged = (agent) => {
      for (let at = round - 1; at >= 0; at--) if (debate.turn(agent, at)) return debate.turn(agent, at).answer;
      return null;
    };
    let best = [];
    let most = -Infinity;
    standings.forEach(({ up, down, equal }, agent) => {
      const standing = up - down;
      const bar = make("span", "live-bar", ...[["up", up], ["equal", equal], ["down", down]].map(([kind, count]) => {
        const part = make("span", kind);
        part.style.setProperty("flex-grow", String(count));
        return part;
      }));
      const words = `${up} for, ${equal} equal, ${down} against`;
      const cell = cells.votes[agent];
      cell.replaceChildren(bar, make("b", "", signed(standing)));
      cell.dataset.note = words;
      if (standing > most) [best, most] = [[], standing];
      if (standing === most) best.push(judged(agent));
    });
    const last = cells.answers.length - 1;
    const lastAnswers = data.form.prompts[last].map(({ agent }) => debate.turn(agent, last).answer).filter(Boolean);
    const counts = new Map();
    for (const answer of lastAnswers) counts.set(answer, (counts.get(answer) || 0) + 1);
    const [majority, size] = [...counts].sort((a, b) => b[1] - a[1])[0] || [null, 0];
    const voted = [...new Set(best.filter(Boolean))];
    const chosen = voted.length === 1 ? voted[0] : majority;
    const parts = [];
    if (voted.length === 1) parts.push("The votes choose ", ...equation(voted[0]), ". ");
    if (voted.length > 1) parts.push(`The votes tie between ${voted.map(pretty).join(" and ")}. `);
    if (!voted.length) parts.push("Nobody voted. ");
    const isAgreed = voted.length === 1 && voted[0] === majority;
    if (majority) parts.push(`In the end ${size} of ${data.form.agents} answer `, ...(isAgreed ? ["the same"] : equation(majority)), ".");
    find("#live-result").replaceChildren(...parts);
    const signs = totalOf(state.puzzle.digits, chosen) === null ? [] : chosen.split(/\s+/);
    const { isRight } = verdictOf(chosen);
    root.querySelectorAll(".live-sign").forEach((slot, k) => {
      slot.textContent = signs[k] ? pretty(signs[k]) : "?";
      slot.className = `live-sign ${signs[k] ? (isRight ? "right" : "wrong") : ""}`;
    });
  };
  const equation = (answer) => {
    const { digits } = state.puzzle;
    const { reached, isRight } = verdictOf(answer);
    if (reached === null) return [make("b", "", pretty(answer))];
    const signs = pretty(answer).split(/\s+/);
    const left = digits.map((digit, k) => (k ? ` ${signs[k - 1]} ${digit}` : `${digit}`)).join("");
    return [make("b", isRight ? "right" : "wrong", `${left} = ${String(reached).replace("-", "−")} ${isRight ? "✓" : "✗"}`)];
  };

  // What one agent wrote: a token's colour and note are its probability.
  const showReplies = () => {
    const { debate, agent } = state;
    if (!debate) return;
    const turns = data.form.prompts.map((_, round) => debate.turn(agent, round)).filter(Boolean);
    find(".live-replies").replaceChildren(...turns.map(shownReply));
  };
  const shownReply = (turn) => {
    const { reply } = turn;
    const starts = [];
    let length = 0;
    for (const id of reply.ids) {
      starts.push(length);
      length += tokens.words[id].length;
    }
    const sections = Object.entries(turn.sections).sort(([, a], [, b]) => a.start - b.start);
    // A tag ends the token before its section: what begins in a section is its own.
    const spoken = sections.filter(([, section]) => !/^(n\/a)?$/i.test(section.text));
    const parts = (turn.failed ? [["reply", { start: 0, end: length }]] : spoken).map(([name, { start, end }]) => {
      const numbers = starts.map((_, k) => k).filter((k) => starts[k] >= start && starts[k] < end);
      const isTag = (k) => !turn.failed && tokens.words[reply.ids[k]].trim() === `</${name}>`;
      const text = make("p", "text live-tokens");
      numbers.filter((k) => !isTag(k)).forEach((k) => text.append(...shownToken(reply, k, !text.childNodes.length)));
      return make("div", "live-part", make("h6", "", name.replace(/_/g, " ")), text);
    });
    const prompt = make("details", "", make("summary", "", "Prompt"), make("p", "text", turn.prompt));
    const block = make("div", "turn", make("h5", "", `Agent ${turn.agent}, round ${turn.round + 1}`), ...parts, prompt);
    makeRoving(block);
    return block;
  };
  const shownToken = (reply, k, isFirst) => {
    const word = tokens.words[reply.ids[k]];
    if (!word.trim()) return isFirst ? [] : [word];
    const made = make("span", "token", pretty(word.trim()));
    const probability = Math.exp(reply.logps[k]);
    made.style.setProperty("--share", `${Math.round(60 * (1 - probability))}%`);
    made.tabIndex = -1;
    const others = reply.alternatives[k].filter(([id, logp]) => id !== reply.ids[k] && logp > Math.log(5e-4));
    const lines = others.map(([id, logp]) => `${pretty(tokens.words[id].trim() || "end")}  ${percent(Math.exp(logp))}`);
    made.dataset.note = [`${pretty(word.trim())}  ${percent(probability)}`, ...lines].join("\n");
    // The check of another agent begins on a line of its own, a vote has one already.
    const isNewLine = word.trim().startsWith("Agent") && /[a-z]$/i.test(tokens.words[reply.ids[k - 1]] ?? "");
    const follows = tokens.words[reply.ids[k - 1]];
    return [isFirst || follows === "\n" ? "" : isNewLine ? "\n" : " ", made];
  };
  // One stop of the tab key for a reply; arrow keys go from token to token.
  const makeRoving = (block) => {
    const all = [...block.querySelectorAll(".token")];
    if (!all.length) return;
    all[0].tabIndex = 0;
    block.addEventListener("keydown", (event) => {
      const at = all.indexOf(event.target);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
      if (at < 0 || to === undefined || !all[to]) return;
      event.preventDefault();
      all[at].tabIndex = -1;
      all[to].tabIndex = 0;
      all[to].focus();
    });
  };

  // Controls.
  let waiting = 0;
  const playSoon = (delay) => {
    clearTimeout(waiting);
    waiting = setTimeout(play, delay);
  };
  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    state.seed++;
    play();
  });
  find("[name=other]").addEventListener("click", () => {
    invent();
    play();
  });
  digitInputs.forEach((input, k) => {
    input.addEventListener("focus", () => input.select());
    input.addEventListener("input", () => {
      if (/^[0-9]$/.test(input.value)) (digitInputs[k + 1] || totalInput).focus();
      playSoon(150);
    });
  });
  totalInput.addEventListener("focus", () => totalInput.select());
  totalInput.addEventListener("input", () => playSoon(250));
  slider.addEventListener("input", () => {
    slider.setAttribute("aria-valuetext", `${slider.value} % of the way from before to after`);
    playSoon(0);
  });

  // Nothing is unpacked before the section comes into view.
  root.hidden = false;
  const watch = new IntersectionObserver((seen) => {
    if (!seen.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    open();
  }, { rootMargin: "300px" });
  watch.observe(root);
})();
