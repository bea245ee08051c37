// Server-sent events, as the HTML standard defines the format (section 9.2.6, "Interpreting an event stream").
// EventSource cannot send a POST, so a chat reply is read through fetch and parsed here.

export type SseEvent = {
  /** Event name, `message` when the server gives none. */
  event: string
  /** All `data:` lines of the event, joined by newlines. */
  data: string
}

/** Incremental parser: give it text as it arrives, get the events that are complete. */
export class SseParser {
  #rest = ''
  #event = ''
  #data: string[] = []

  push(text: string): SseEvent[] {
    const buffer = this.#rest + text
    const events: SseEvent[] = []
    let lineStart = 0
    for (let i = 0; i < buffer.length; i++) {
      const char = buffer[i]
      if (char !== '\n' && char !== '\r') continue
      // A CR at the very end may be the first half of a CRLF: wait for what follows.
      if (char === '\r' && i === buffer.length - 1) break
      const event = this.#line(buffer.slice(lineStart, i))
      if (event !== null) events.push(event)
      if (char === '\r' && buffer[i + 1] === '\n') i++
      lineStart = i + 1
    }
    this.#rest = buffer.slice(lineStart)
    return events
  }

  /** Call at the end of the stream: a CR that was held back ends its line. An unfinished event is dropped. */
  end(): SseEvent[] {
    return this.#rest.endsWith('\r') ? this.push('\n') : []
  }

  #line(line: string): SseEvent | null {
    if (line === '') {
      const event = { event: this.#event || 'message', data: this.#data.join('\n') }
      const complete = this.#data.length > 0
      this.#event = ''
      this.#data = []
      return complete ? event : null
    }
    const colon = line.indexOf(':')
    if (colon === 0) return null // a comment, sent to keep the connection alive
    const field = colon < 0 ? line : line.slice(0, colon)
    let value = colon < 0 ? '' : line.slice(colon + 1)
    if (value.startsWith(' ')) value = value.slice(1)
    if (field === 'data') this.#data.push(value)
    else if (field === 'event') this.#event = value
    return null
  }
}

/** The events of a response body, in order. */
export async function* readSse(body: ReadableStream<Uint8Array>): AsyncGenerator<SseEvent> {
  const parser = new SseParser()
  const decoder = new TextDecoder()
  const reader = body.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) {
        yield* parser.end()
        return
      }
      yield* parser.push(decoder.decode(value, { stream: true }))
    }
  } finally {
    // Reached too when the consumer stops early: the server sees that nobody listens any more.
    await reader.cancel().catch(() => {})
  }
}
