// The run's model in plain JavaScript: words to ids, ids to logits, logits to a reply.
const DebateSampler = (() => {
  const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

  // Tensors by name, from float32 values one after the other.
  const unpackWeights = (tensors, packed) => {
    const values = new Float32Array(bytesOf(packed).buffer);
    const weights = {};
    let start = 0;
    for (const [name, ...shape] of tensors) {
      const end = start + shape.reduce((product, size) => product * size, 1);
      weights[name] = values.subarray(start, end);
      start = end;
    }
    return weights;
  };

  // Weights between two sets: 0 gives the first, 1 the second.
  const mixWeights = (first, second, share) => {
    const mixed = {};
    for (const [name, from] of Object.entries(first)) {
      const to = second[name];
      mixed[name] = from.map((value, k) => (1 - share) * value + share * to[k]);
    }
    return mixed;
  };

  // out = matrix · vector; a row of the matrix for each output.
  const multiply = (matrix, vector, out) => {
    const width = vector.length;
    for (let row = 0, at = 0; row < out.length; row++) {
      let sum = 0;
      for (let k = 0; k < width; k++) sum += matrix[at++] * vector[k];
      out[row] = sum;
    }
    return out;
  };
  const addTo = (target, values) => {
    for (let k = 0; k < target.length; k++) target[k] += values[k];
  };
  const silu = (x) => x / (1 + Math.exp(-x));

  // Qwen3: RMS norms, rotary positions, queries and keys normed by head, grouped heads, SwiGLU.
  class Model {
    constructor(sizes, weights) {
      this.sizes = sizes;
      this.embedding = weights["model.embed_tokens.weight"];
      this.head = sizes.tied ? this.embedding : weights["lm_head.weight"];
      this.finalNorm = weights["model.norm.weight"];
      this.layers = Array.from({ length: sizes.layers }, (_, number) => {
        const of = (name) => weights[`model.layers.${number}.${name}.weight`];
        return {
          inputNorm: of("input_layernorm"),
          query: of("self_attn.q_proj"),
          key: of("self_attn.k_proj"),
          value: of("self_attn.v_proj"),
          queryNorm: of("self_attn.q_norm"),
          keyNorm: of("self_attn.k_norm"),
          output: of("self_attn.o_proj"),
          postNorm: of("post_attention_layernorm"),
          gate: of("mlp.gate_proj"),
          up: of("mlp.up_proj"),
          down: of("mlp.down_proj"),
        };
      });
      const half = sizes.head_dim / 2;
      this.frequencies = Float64Array.from({ length: half }, (_, k) => sizes.rope_theta ** (-k / half));
      const room = (length) => new Float64Array(length);
      this.x = room(sizes.hidden);
      this.normed = room(sizes.hidden);
      this.branch = room(sizes.hidden);
      this.queries = room(sizes.heads * sizes.head_dim);
      this.attended = room(sizes.heads * sizes.head_dim);
      this.scores = room(sizes.window);
      this.gated = room(sizes.ffn);
      this.raised = room(sizes.ffn);
      this.logits = room(sizes.vocabulary);
    }

    // Keys and values of one conversation; a shorter `length` forgets the tokens after it.
    newCache() {
      const width = this.sizes.kv_heads * this.sizes.head_dim;
      const room = () => this.layers.map(() => new Float64Array(this.sizes.window * width));
      return { keys: room(), values: room(), length: 0 };
    }

    // Read tokens at the end of a conversation; return the logits of the token after them.
    read(ids, cache) {
      for (const id of ids) this.readToken(id, cache);
      this.norm(this.x, this.finalNorm, this.normed, 0, this.sizes.hidden);
      return multiply(this.head, this.normed, this.logits);
    }

    readToken(id, cache) {
      const { hidden } = this.sizes;
      const { x, normed, branch } = this;
      for (let k = 0; k < hidden; k++) x[k] = this.embedding[id * hidden + k];
      this.layers.forEach((layer, number) => {
        this.norm(x, layer.inputNorm, normed, 0, hidden);
        this.attend(layer, cache.keys[number], cache.values[number], cache.length);
        addTo(x, multiply(layer.output, this.attended, branch));
        this.norm(x, layer.postNorm, normed, 0, hidden);
        multiply(layer.gate, normed, this.gated);
        multiply(layer.up, normed, this.raised);
        for (let k = 0; k < this.gated.length; k++) this.gated[k] = silu(this.gated[k]) * this.raised[k];
        addTo(x, multiply(layer.down, this.gated, branch));
      });
      cache.length++;
    }

    attend(layer, keys, values, position) {
      const { heads, kv_heads: kvHeads, head_dim: dim } = this.sizes;
      const width = kvHeads * dim;
      const newest = position * width;
      multiply(layer.query, this.normed, this.queries);
      multiply(layer.key, this.normed, keys.subarray(newest, newest + width));
      multiply(layer.value, this.normed, values.subarray(newest, newest + width));
      for (let head = 0; head < heads; head++) {
        this.norm(this.queries, layer.queryNorm, this.queries, head * dim, dim);
        this.rotate(this.queries, head * dim, position);
      }
      for (let head = 0; head < kvHeads; head++) {
        this.norm(keys, layer.keyNorm, keys, newest + head * dim, dim);
        this.rotate(keys, newest + head * dim, position);
      }
      const { scores, attended, queries } = this;
      const scale = 1 / Math.sqrt(dim);
      for (let head = 0; head < heads; head++) {
        const kvHead = Math.floor((head * kvHeads) / heads) * dim;
        const start = head * dim;
        let largest = -Infinity;
        for (let t = 0, at = kvHead; t <= position; t++, at += width) {
          let score = 0;
          for (let k = 0; k < dim; k++) score += queries[start + k] * keys[at + k];
          scores[t] = score * scale;
          if (scores[t] > largest) largest = scores[t];
        }
        attended.fill(0, start, start + dim);
        let total = 0;
        for (let t = 0, at = kvHead; t <= position; t++, at += width) {
          const weight = Math.exp(scores[t] - largest);
          total += weight;
          for (let k = 0; k < dim; k++) attended[start + k] += weight * values[at + k];
        }
        for (let k = 0; k < dim; k++) attended[start + k] /= total;
      }
    }

    norm(from, gain, into, start, length) {
      let squares = 0;
      for (let k = start; k < start + length; k++) squares += from[k] * from[k];
      const scale = 1 / Math.sqrt(squares / length + this.sizes.rms_eps);
      for (let k = 0; k < length; k++) into[start + k] = from[start + k] * scale * gain[k];
    }

    // The first half of a head is turned against its second half.
    rotate(vector, start, position) {
      const half = this.frequencies.length;
      for (let k = 0; k < half; k++) {
        const angle = position * this.frequencies[k];
        const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
        const [left, right] = [vector[start + k], vector[start + half + k]];
        vector[start + k] = left * cosine - right * sine;
        vector[start + half + k] = right * cosine + left * sine;
      }
    }
  }

  // Log-probabilities of all tokens at a temperature; those of temperature 1 for greedy agents.
  const logSoftmax = (logits, temperature) => {
    const scale = temperature > 0 ? 1 / temperature : 1;
    let largest = -Infinity;
    for (const logit of logits) largest = Math.max(largest, logit * scale);
    let total = 0;
    for (const logit of logits) total += Math.exp(logit * scale - largest);
    const shift = largest + Math.log(total);
    return logits.map((logit) => logit * scale - shift);
  };

  // One space before each word, none before a line break; words of several go first.
  class Tokens {
    constructor({ words, unknown, chat, disarmed }) {
      this.words = words;
      this.unknown = unknown;
      this.chat = chat;
      this.disarmed = disarmed;
      this.ids = new Map(words.map((word, id) => [word, id]).filter(([word]) => word));
      const phrases = words.filter((word) => word.slice(1).includes(" "));
      phrases.sort((a, b) => b.length - a.length);
      const escaped = phrases.map((phrase) => `${phrase.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?!\\S)`);
      this.pattern = new RegExp([...escaped, "\\n", " [^\\s]+"].join("|"), "g");
    }
    encode(text) {
      const spaced = ` ${text}`
        .replace(/\s*\n\s*/g, "\n ")
        .replace(/[^\S\n]+/g, " ")
        .replace(/ +$/, "");
      return (spaced.match(this.pattern) || []).map((word) => this.ids.get(word) ?? this.unknown);
    }
    decode(ids) {
      return ids.map((id) => this.words[id]).join("");
    }
    // A text as others are shown it: on one line, unable to open a section or to name a speaker.
    shown(text) {
      const words = text.split(/\s+/).filter((word) => word && word !== ":");
      return words.map((word) => this.disarmed[word] ?? word).join(" ");
    }
  }

  // The ids that a prompt adds to a conversation; a reply may have been cut before its end token.
  const promptIds = (tokens, text, lastReply) => {
    const { user, assistant, end } = tokens.chat;
    const isOpen = lastReply && lastReply[lastReply.length - 1] !== end;
    return [...(isOpen ? [end] : []), user, ...tokens.encode(text), end, assistant];
  };

  // Uniform numbers in [0, 1) from a text.
  // Source: FNV-1a (Fowler, Noll, Vo) for the seed, mulberry32 (Tommy Ettinger) for the stream.
  const uniforms = (text) => {
    let state = 2166136261;
    for (const character of text) state = Math.imul(state ^ character.codePointAt(0), 16777619);
    return () => {
      state = (state + 0x6d2b79f5) | 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  };

  const draw = (logps, temperature, uniform) => {
    if (temperature === 0) return logps.indexOf(Math.max(...logps));
    let left = uniform();
    let drawn = 0;
    for (let id = 0; id < logps.length; id++) {
      const probability = Math.exp(logps[id]);
      if (probability > 0) drawn = id;
      left -= probability;
      if (left < 0) break;
    }
    return drawn;
  };

  const MOST_ALTERNATIVES = 4;
  const likeliest = (logps) => {
    const ids = Array.from(logps.keys()).sort((a, b) => logps[b] - logps[a]);
    return ids.slice(0, MOST_ALTERNATIVES).map((id) => [id, logps[id]]);
  };

  // Sample the reply to a prompt; each token with its log-probability and the likeliest ones.
  const sampleReply = (model, tokens, cache, prompt, { temperature, maxTokens, stop, uniform }) => {
    const reply = { ids: [], logps: [], alternatives: [], text: "" };
    if (cache.length + prompt.length >= model.sizes.window) return reply;
    let logits = model.read(prompt, cache);
    const most = Math.min(maxTokens, model.sizes.window - cache.length);
    while (reply.ids.length < most) {
      const logps = logSoftmax(logits, temperature);
      const id = draw(logps, temperature, uniform);
      reply.ids.push(id);
      reply.logps.push(logps[id]);
      reply.alternatives.push(likeliest(logps));
      reply.text += tokens.words[id];
      const hasEnded = id === tokens.chat.end || reply.text.includes(stop);
      // Read also a last token: later prompts go on from it.
      logits = model.read([id], cache);
      if (hasEnded) break;
    }
    return reply;
  };

  // Log-probabilities of given tokens after a prompt.
  const scoreReply = (model, cache, prompt, ids, temperature) => {
    let logits = model.read(prompt, cache);
    return ids.map((id) => {
      const logp = logSoftmax(logits, temperature)[id];
      logits = model.read([id], cache);
      return logp;
    });
  };

  const NOTHING = /^\s*(?:[-*+•·–—`]+|\(?[0-9]{1,9}[.)])?\s*(?:n\/a|na|none)\s*\.?\s*$/i;
  const saysNothing = (text) => !text || !text.trim() || NOTHING.test(text);

  // The sections of a reply, [text, start, end] by name: the last complete block of each.
  const readSections = (text, names) => {
    const byLength = [...names].sort((a, b) => b.length - a.length);
    const tag = new RegExp(`<(/?)(${byLength.join("|")})\\s*>`, "gi");
    const blocks = [];
    let open = null;
    const close = (end, isWhole) => {
      if (open) blocks.push({ ...open, end, isWhole });
      open = null;
    };
    for (const match of text.matchAll(tag)) {
      const name = match[2].toLowerCase();
      if (!match[1]) {
        close(match.index, false);
        open = { name, start: match.index + match[0].length };
      } else if (open && open.name === name) close(match.index, true);
    }
    close(text.length, false);
    const sections = {};
    for (const block of blocks) {
      const best = sections[block.name];
      if (!best || !best.isWhole || block.isWhole) sections[block.name] = block;
    }
    for (const block of Object.values(sections)) block.text = text.slice(block.start, block.end).trim();
    return sections;
  };

  // Votes [better, "=" or ">", other] on agents whose answers the judge could read.
  const VOTE = /^\s*(?:[-*+•·–—`]+|\(?[0-9]{1,9}[.)])?\s*agent\s*([0-9]+)\s*([<>=])\s*agent\s*([0-9]+)(?!\w)(?!\s*[<>=])/i;
  const readVotes = (text, readable) => {
    const verdicts = new Map();
    for (const line of text.split("\n")) {
      const match = VOTE.exec(line);
      if (!match) continue;
      const [left, right] = [Number(match[1]), Number(match[3])];
      if (left === right || !readable.has(left) || !readable.has(right)) continue;
      const [low, high] = [Math.min(left, right), Math.max(left, right)];
      const better = match[2] === "=" ? null : (match[2] === ">") === (left === low) ? low : high;
      const pair = `${low} ${high}`;
      const known = verdicts.get(pair);
      // Two verdicts on one pair cancel each other.
      verdicts.set(pair, { low, high, better, isClear: (!known || (known.isClear && known.better === better)) });
    }
    return [...verdicts.values()].filter((verdict) => verdict.isClear);
  };

  // One debate: who is shown what is the form's own, in the lines that the exporter wrote.
  class Debate {
    constructor(data, tokens, model, question) {
      Object.assign(this, { data, tokens, model, question });
      this.turns = new Map();
      this.conversations = new Map();
    }
    turn(agent, round) {
      return this.turns.get(`${agent} ${round}`);
    }
    promptText({ lines }) {
      const shown = [];
      for (const line of lines) {
        if (line.text !== undefined) shown.push(line.text);
        else if (line.question) shown.push(line.before + this.question);
        else {
          const turn = this.turn(line.agent, line.round);
          const section = turn.sections[line.section];
          const text = section && !saysNothing(section.text) ? section.text : "";
          if (turn.failed) {
            if (line.answers) shown.push(line.failed);
          } else if (text || line.answers) shown.push((line.before + this.tokens.shown(text)).trimEnd());
        }
      }
      return shown.join("\n");
    }
    // The agents whose answers an agent is shown in this prompt, or was shown before.
    readableTo(agent, round) {
      const readable = new Set();
      for (const prompts of this.data.form.prompts.slice(0, round + 1)) {
        for (const line of prompts.find((prompt) => prompt.agent === agent)?.lines ?? []) {
          if (!line.answers || line.agent === agent) continue;
          const isReadable = !this.turn(line.agent, line.round).failed;
          if (isReadable) readable.add(line.agent);
          else readable.delete(line.agent);
        }
      }
      return readable;
    }
    play(prompt, seed) {
      const { form, sampling } = this.data;
      const { agent, round } = prompt;
      const before = prompt.continues ? this.conversations.get(agent) : null;
      const cache = before ? before.cache : this.model.newCache();
      const text = this.promptText(prompt);
      const ids = promptIds(this.tokens, text, before ? before.reply.ids : null);
      const reply = sampleReply(this.model, this.tokens, cache, ids, {
        temperature: sampling.temperatures[agent],
        maxTokens: sampling.max_tokens,
        stop: sampling.stop,
        uniform: uniforms(`${seed}/${agent}/${round}`),
      });
      const turn = this.record(agent, round, reply.text);
      Object.assign(turn, { reply, prompt: text, temperature: sampling.temperatures[agent] });
      this.conversations.set(agent, { cache, reply });
      return turn;
    }
    record(agent, round, text) {
      const { form } = this.data;
      const sections = readSections(text, form.sections);
      const answer = sections[form.answer]?.text || null;
      const turn = { agent, round, text, sections, answer, failed: answer === null, votes: [] };
      if (!turn.failed && sections.comparison) {
        turn.votes = readVotes(sections.comparison.text, this.readableTo(agent, round));
      }
      this.turns.set(`${agent} ${round}`, turn);
      return turn;
    }
    // Votes for minus votes against of each judged agent, in the last round with votes.
    standings() {
      const turns = [...this.turns.values()];
      const votedRounds = turns.filter((turn) => turn.votes.length).map((turn) => turn.round);
      const last = Math.max(...votedRounds);
      const standings = new Map();
      // Agents without a vote have the standing 0, also those of judges who cast none.
      for (const judge of turns.filter((turn) => turn.round === last)) {
        for (const agent of this.readableTo(judge.agent, last)) {
          if (!standings.has(agent)) standings.set(agent, { up: 0, down: 0, equal: 0 });
        }
        for (const { low, high, better } of judge.votes) {
          for (const agent of [low, high]) {
            const kind = better === null ? "equal" : better === agent ? "up" : "down";
            standings.get(agent)[kind]++;
          }
        }
      }
      return { round: last, standings };
    }
  }

  return { Model, Tokens, Debate, unpackWeights, mixWeights, promptIds, scoreReply, uniforms, draw };
})();
