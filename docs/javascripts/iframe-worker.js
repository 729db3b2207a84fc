/* Browsers start no workers for a page that was opened from disk. There, what a worker would do is done by a script in a
   hidden frame, so that the search works without a server. Elsewhere this file does nothing. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.inside = new Promise((resolve) => {
        // What the script posts must reach whoever made the worker, not the frame itself.
        frame.srcdoc = "<!doctype html><script>self.importScripts = () => {}</script>"
        frame.onload = () => {
          const inside = frame.contentWindow
          if (inside.started) return
          inside.started = true
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = url
          script.onload = () => resolve(inside)
          inside.document.head.append(script)
        }
      })
      document.body.append(frame)
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {}
  }
}
