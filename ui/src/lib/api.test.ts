import { afterEach, describe, expect, it, vi } from 'vitest'
import { ApiError, getModels, streamChat, type ChatEvent } from './api'

afterEach(() => vi.unstubAllGlobals())

/** Replaces fetch by one answer and keeps what was asked. */
function answer(respond: () => Response | Promise<Response>) {
  const fetch = vi.fn((_path: string, _init: RequestInit) => Promise.resolve().then(respond))
  vi.stubGlobal('fetch', fetch)
  return fetch
}

const events = (...chunks: unknown[]) =>
  new Response(chunks.map((c) => `data: ${typeof c === 'string' ? c : JSON.stringify(c)}\n\n`).join(''), {
    headers: { 'content-type': 'text/event-stream' },
  })

async function collect(key?: string): Promise<ChatEvent[]> {
  const all: ChatEvent[] = []
  for await (const event of streamChat({ model: 'm', messages: [{ role: 'user', content: 'hi' }] }, { key })) all.push(event)
  return all
}

async function failure(promise: Promise<unknown>): Promise<ApiError> {
  const error = await promise.then(
    () => undefined,
    (e: unknown) => e,
  )
  expect(error).toBeInstanceOf(ApiError)
  return error as ApiError
}

describe('streamChat', () => {
  it('asks for a stream with usage, and sends the key', async () => {
    const fetch = answer(() => events({ choices: [{ delta: {}, finish_reason: 'stop' }] }, '[DONE]'))
    await collect('secret')
    const [path, init] = fetch.mock.calls[0]!
    expect(path).toBe('/v1/chat/completions')
    expect(init.headers).toMatchObject({ authorization: 'Bearer secret', 'content-type': 'application/json' })
    expect(JSON.parse(init.body as string)).toEqual({
      model: 'm',
      messages: [{ role: 'user', content: 'hi' }],
      stream: true,
      stream_options: { include_usage: true },
    })
  })

  it('gives text, reasoning, finish and usage in order, and nothing for empty deltas', async () => {
    const usage = { prompt_tokens: 3, completion_tokens: 2, time_to_first_token: 0.25, generation_tokens_per_second: 40 }
    answer(() =>
      events(
        { choices: [{ delta: { role: 'assistant', content: '' } }] },
        { choices: [{ delta: { reasoning_content: 'hm' } }] },
        { choices: [{ delta: { content: 'Hel' } }], usage: null },
        { choices: [{ delta: { content: 'lo' }, finish_reason: 'stop' }] },
        { choices: [], usage },
        '[DONE]',
      ),
    )
    expect(await collect()).toEqual([
      { type: 'reasoning', text: 'hm' },
      { type: 'text', text: 'Hel' },
      { type: 'text', text: 'lo' },
      { type: 'finish', reason: 'stop' },
      { type: 'usage', usage },
    ])
  })

  it('says why a request was refused', async () => {
    answer(() => Response.json({ error: { message: 'No such model.', type: 'invalid_request_error' } }, { status: 404 }))
    expect(await failure(collect())).toMatchObject({ message: 'No such model.', status: 404, needsKey: false })
  })

  it('says so when the reply fails midway', async () => {
    answer(() => events({ choices: [{ delta: { content: 'a' } }] }, { error: { message: 'Out of memory.' } }))
    expect((await failure(collect())).message).toBe('Out of memory.')
  })

  it('notices a reply that breaks off or ends too early', async () => {
    answer(() => events({ choices: [{ delta: { content: 'a' } }] }))
    expect((await failure(collect())).message).toMatch(/before it was complete/)

    answer(() => new Response(new ReadableStream({ pull: (c) => c.error(new TypeError('network error')) })))
    expect((await failure(collect())).message).toMatch(/broke off/)
  })
})

describe('errors', () => {
  it('knows a missing key', async () => {
    answer(() => Response.json({ error: { message: 'An API key is needed.' } }, { status: 401 }))
    expect(await failure(getModels())).toMatchObject({ message: 'An API key is needed.', needsKey: true })
  })

  it('has words for a server that is gone and for answers that are not JSON', async () => {
    answer(() => Promise.reject(new TypeError('Failed to fetch')))
    expect((await failure(getModels())).message).toMatch(/cannot be reached/)

    answer(() => new Response('busy, come back later', { status: 503 }))
    expect((await failure(getModels())).message).toBe('busy, come back later')

    answer(() => new Response('<html>Bad gateway</html>', { status: 502, statusText: 'Bad Gateway' }))
    expect((await failure(getModels())).message).toBe('The server answered with status 502 (Bad Gateway).')
  })
})
