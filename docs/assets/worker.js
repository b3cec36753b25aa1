// Browsers give no workers to pages that were opened as files, and the search of this site is one: it runs in a
// hidden frame there instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      const told = "window.postMessage = data => parent.postMessage(data, '*')"
      frame.hidden = true
      frame.srcdoc = `<script>${told}<\/script><script src="${url}"><\/script>`
      this.ready = new Promise(resolve => frame.addEventListener("load", () => resolve(frame.contentWindow)))
      window.addEventListener("message", ({ source, data }) => {
        if (source !== frame.contentWindow) return
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      })
      document.addEventListener("DOMContentLoaded", () => document.body.append(frame))
      if (document.body) document.body.append(frame)
    }
    postMessage(data) {
      this.ready.then(target => target.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
