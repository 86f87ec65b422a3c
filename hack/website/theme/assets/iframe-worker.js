// The search runs in a Worker, which browsers refuse to pages that are read from files. There it runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #ready;
    constructor(url) {
      super();
      const base = new URL(url, location.href);
      this.#frame.hidden = true;
      document.documentElement.append(this.#frame);
      const inside = this.#frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          Object.assign(script, { src: new URL(source, base), onload: resolve, onerror: reject });
          inside.document.body.append(script);
        });
      inside.importScripts = (...sources) => sources.reduce((done, source) => done.then(() => load(source)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.#ready = load(base);
    }
    postMessage(data) {
      const inside = this.#frame.contentWindow;
      this.#ready.then(() => {
        const event = new MessageEvent("message", { data });
        inside.dispatchEvent(event);
        inside.onmessage?.(event);
      });
    }
    terminate() {
      this.#frame.remove();
    }
  };
}
