/* A browser starts no worker for a page that it opened from disk; the search runs in a hidden
   frame there. "iframe-worker" in the name keeps Zensical from asking another host for its own. */
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script src="${new URL(url, location)}"></script>`;
      this.inner = new Promise(ready => {
        this.frame.onload = () => {
          const inner = this.frame.contentWindow;
          inner.postMessage = data => this.onmessage?.({ data: structuredClone(data) });
          ready(inner);
        };
      });
      document.body.append(this.frame);
    }
    postMessage(data) {
      this.inner.then(inner => inner.onmessage({ data: structuredClone(data) }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
