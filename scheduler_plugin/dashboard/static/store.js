// The fleet's rows by kind and key, updated by the server's events. A browser opens at most six connections to one
// server, so a hidden tab closes its own, and continues from the last event when it is visible again.

const SILENCE_LIMIT = 35000; // milliseconds: the server sends something every ten seconds
const KINDS = ["vm", "node", "move", "group", "standing"];

export class Store extends EventTarget {
  constructor() {
    super();
    this.rows = Object.fromEntries(KINDS.map((kind) => [kind, new Map()]));
    this.columns = {};
    this.version = 0;
    this.receivedAt = null;
    this.lastEventAt = 0;
    this.link = "connecting"; // or "live", "lost", "paused"
    this.lastId = "";
    this.isOpen = false;
    this.source = null;
    this.retry = 0;
    setInterval(() => this.checkSilence(), 5000);
  }

  // The server calls this kind of row "standing".
  get status() { return this.rows.standing.get("scheduler"); }

  open() {
    this.isOpen = true;
    this.followVisibility();
  }

  // The tab became visible or hidden.
  followVisibility() {
    if (!this.isOpen) return;
    if (!document.hidden) { if (!this.source) this.connect(); return; }
    this.disconnect();
    this.setLink("paused");
  }

  connect() {
    this.disconnect();
    this.source = new EventSource(this.lastId ? `api/events?after=${encodeURIComponent(this.lastId)}` : "api/events");
    this.source.addEventListener("snapshot", (event) => this.apply(event, true));
    this.source.addEventListener("diff", (event) => this.apply(event, false));
    this.source.addEventListener("beat", () => this.onTraffic());
    this.source.addEventListener("open", () => this.onTraffic());
    this.source.addEventListener("error", () => this.onError());
  }

  disconnect() {
    clearTimeout(this.retry);
    if (this.source) this.source.close();
    this.source = null;
  }

  reset() {
    this.isOpen = false;
    this.disconnect();
    this.lastId = "";
    for (const rows of Object.values(this.rows)) rows.clear();
    this.receivedAt = null;
    this.setLink("connecting");
  }

  apply(event, isSnapshot) {
    const data = JSON.parse(event.data);
    this.lastId = event.lastEventId;
    if (data.columns) this.columns = data.columns;
    if (isSnapshot) for (const rows of Object.values(this.rows)) rows.clear();
    for (const [kind, keys] of Object.entries(data.gone)) for (const key of keys) this.rows[kind].delete(key);
    for (const [kind, rows] of Object.entries(data.rows)) {
      const names = this.columns[kind];
      for (const row of rows) this.rows[kind].set(row[0], named(names, row));
    }
    this.version += 1;
    this.receivedAt = new Date();
    this.onTraffic();
    this.dispatchEvent(new Event("change"));
  }

  onTraffic() {
    this.lastEventAt = Date.now();
    this.setLink("live");
  }

  // Reconnects after a silence: a broken connection may never report an error.
  checkSilence() {
    if (this.link !== "live" || Date.now() - this.lastEventAt < SILENCE_LIMIT) return;
    this.setLink("lost");
    this.connect();
  }

  setLink(link) {
    if (this.link === link) return;
    this.link = link;
    this.version += 1;
    this.dispatchEvent(new Event("link"));
  }

  onError() {
    this.setLink("lost");
    if (!this.source || this.source.readyState !== EventSource.CLOSED) return;
    this.dispatchEvent(new Event("refused"));
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), 2000 + Math.random() * 2000);
  }
}

function named(names, row) {
  const record = {};
  for (let at = 0; at < names.length; at += 1) record[names[at]] = row[at];
  return record;
}
