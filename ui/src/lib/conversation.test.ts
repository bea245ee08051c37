import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { Conversation } from './conversation.svelte'

/** A server of which the test decides when and what it sends. */
class FakeServer {
  requests: { messages: unknown[] }[] = []
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined

  fetch = (_path: string, init: RequestInit): Promise<Response> => {
    this.requests.push(JSON.parse(init.body as string) as { messages: unknown[] })
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#controller = controller
        init.signal?.addEventListener('abort', () => controller.error(new DOMException('aborted', 'AbortError')))
      },
    })
    return Promise.resolve(new Response(body))
  }

  send(...data: (string | object)[]): void {
    for (const d of data) {
      const text = typeof d === 'string' ? d : JSON.stringify(d)
      this.#controller?.enqueue(new TextEncoder().encode(`data: ${text}\n\n`))
    }
  }
}

/** Waits as long as a busy machine may need. */
const eventually = (check: () => void) => vi.waitFor(check, { timeout: 30_000 })
const text = (content: string, finish_reason: string | null = null) => ({ choices: [{ delta: { content }, finish_reason }] })
const ask = (prompt: string) => ({ model: 'm', system: '', prompt, key: '' })

let server: FakeServer
beforeEach(() => {
  server = new FakeServer()
  vi.stubGlobal('fetch', server.fetch)
})
afterEach(() => vi.unstubAllGlobals())

describe('Conversation', () => {
  it('follows a reply to its end', async () => {
    const chat = new Conversation()
    const sent = chat.send(ask('hi'))
    expect(chat.busy).toBe(true)
    expect(chat.turns[0]!.state).toBe('waiting')
    await eventually(() => expect(server.requests).toHaveLength(1))
    server.send(text('Hel'))
    await eventually(() => expect(chat.turns[0]).toMatchObject({ state: 'streaming', text: 'Hel' }))
    server.send(text('lo', 'stop'), { choices: [], usage: { prompt_tokens: 1, completion_tokens: 2 } }, '[DONE]')
    await sent
    expect(chat.turns[0]).toMatchObject({ state: 'done', text: 'Hello', finish: 'stop', usage: { completion_tokens: 2 } })
    expect(chat.busy).toBe(false)
  })

  it('keeps what came before a stop, and sends it with the next prompt', async () => {
    const chat = new Conversation()
    const sent = chat.send(ask('one'))
    await eventually(() => expect(server.requests).toHaveLength(1))
    server.send(text('part'))
    await eventually(() => expect(chat.turns[0]!.text).toBe('part'))
    chat.stop()
    await sent
    expect(chat.turns[0]).toMatchObject({ state: 'stopped', text: 'part', error: null })
    expect(chat.messages('be brief', 'two')).toEqual([
      { role: 'system', content: 'be brief' },
      { role: 'user', content: 'one' },
      { role: 'assistant', content: 'part' },
      { role: 'user', content: 'two' },
    ])
  })

  it('leaves a failed turn out of the history and shows its error', async () => {
    const chat = new Conversation()
    const sent = chat.send(ask('one'))
    await eventually(() => expect(server.requests).toHaveLength(1))
    server.send({ error: { message: 'Out of memory.' } })
    await sent
    expect(chat.turns[0]).toMatchObject({ state: 'failed', error: 'Out of memory.' })
    expect(chat.messages('  ', 'two')).toEqual([{ role: 'user', content: 'two' }])
  })

  it('keeps the words of a refusal', async () => {
    vi.stubGlobal('fetch', () => Promise.resolve(Response.json({ error: { message: 'key?' } }, { status: 401 })))
    const chat = new Conversation()
    await chat.send(ask('hi'))
    expect(chat.turns[0]).toMatchObject({ state: 'failed', error: 'key?' })
    expect(chat.busy).toBe(false)
  })

  it('answers one prompt at a time', async () => {
    const chat = new Conversation()
    const sent = chat.send(ask('one'))
    await chat.send(ask('two'))
    expect(chat.turns).toHaveLength(1)
    await eventually(() => expect(server.requests).toHaveLength(1))
    chat.clear()
    await sent
    expect(chat.turns).toHaveLength(0)
    expect(chat.busy).toBe(false)
  })
})
