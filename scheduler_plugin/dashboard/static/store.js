// The fleet's rows by kind and key, updated by the server's events. A browser opens at most six connections to one
// server, so a hidden tab closes its own, and continues from the last event when it is visible again.

const SILENT = 35000; // milliseconds: the server sends something every ten seconds
const KINDS = ["vm", "node", "move", "group", "standing"];

export class Store extends EventTarget {
  constructor() {
    super();
    this.rows = Object.fromEntries(KINDS.map((kind) => [kind, new Map()]));
    this.columns = {};
    this.version = 0;
    this.heardAt = null;
    this.signAt = 0;
    this.link = "asking"; // or "live", "lost", "paused"
    this.lastId = "";
    this.isOpen = false;
    this.source = null;
    this.retry = 0;
    setInterval(() => this.listen(), 5000);
  }

  get standing() { return this.rows.standing.get("scheduler"); }

  open() {
    this.isOpen = true;
    this.shown();
  }

  // The tab became visible or hidden.
  shown() {
    if (!this.isOpen) return;
    if (!document.hidden) { if (!this.source) this.connect(); return; }
    this.disconnect();
    this.become("paused");
  }

  connect() {
    this.disconnect();
    this.source = new EventSource(this.lastId ? `api/events?after=${encodeURIComponent(this.lastId)}` : "api/events");
    this.source.addEventListener("snapshot", (event) => this.take(event, true));
    this.source.addEventListener("diff", (event) => this.take(event, false));
    this.source.addEventListener("beat", () => this.heard());
    this.source.addEventListener("open", () => this.heard());
    this.source.addEventListener("error", () => this.lost());
  }

  disconnect() {
    clearTimeout(this.retry);
    if (this.source) this.source.close();
    this.source = null;
  }

  forget() {
    this.isOpen = false;
    this.disconnect();
    this.lastId = "";
    for (const rows of Object.values(this.rows)) rows.clear();
    this.heardAt = null;
    this.become("asking");
  }

  take(event, isWhole) {
    const data = JSON.parse(event.data);
    this.lastId = event.lastEventId;
    if (data.columns) this.columns = data.columns;
    if (isWhole) for (const rows of Object.values(this.rows)) rows.clear();
    for (const [kind, keys] of Object.entries(data.gone)) for (const key of keys) this.rows[kind].delete(key);
    for (const [kind, rows] of Object.entries(data.rows)) {
      const names = this.columns[kind];
      for (const row of rows) this.rows[kind].set(row[0], named(names, row));
    }
    this.version += 1;
    this.heardAt = new Date();
    this.heard();
    this.dispatchEvent(new Event("news"));
  }

  heard() {
    this.signAt = Date.now();
    this.become("live");
  }

  // Reconnects after a silence: a broken connection may never report an error.
  listen() {
    if (this.link !== "live" || Date.now() - this.signAt < SILENT) return;
    this.become("lost");
    this.connect();
  }

  become(link) {
    if (this.link === link) return;
    this.link = link;
    this.version += 1;
    this.dispatchEvent(new Event("link"));
  }

  lost() {
    this.become("lost");
    if (!this.source || this.source.readyState !== EventSource.CLOSED) return;
    this.dispatchEvent(new Event("refused"));
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), 2000 + Math.random() * 2000);
  }
}

function named(names, row) {
  const found = {};
  for (let at = 0; at < names.length; at += 1) found[names[at]] = row[at];
  return found;
}
