import { describe, expect, it } from 'vitest'
import { readSse, SseParser, type SseEvent } from './sse'

/** Feeds the text in pieces of `size` characters and returns all events. */
function parse(text: string, size = text.length): SseEvent[] {
  const parser = new SseParser()
  const events: SseEvent[] = []
  for (let i = 0; i < text.length; i += size) events.push(...parser.push(text.slice(i, i + size)))
  return [...events, ...parser.end()]
}

const message = (data: string): SseEvent => ({ event: 'message', data })

function body(...chunks: Uint8Array[]): { stream: ReadableStream<Uint8Array>; cancelled: () => boolean } {
  let cancelled = false
  const stream = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        const chunk = chunks.shift()
        if (chunk === undefined) controller.close()
        else controller.enqueue(chunk)
      },
      cancel() {
        cancelled = true
      },
    },
    { highWaterMark: 0 },
  )
  return { stream, cancelled: () => cancelled }
}

describe('SseParser', () => {
  const mixed =
    ': keep-alive\n\ndata: {"a":1}\n\nevent: error\r\ndata: one\r\ndata: two\r\n\r\ndata:no space\rdata:  two spaces\r\rid: 7\ndata\n\n'
  const expected: SseEvent[] = [
    message('{"a":1}'),
    { event: 'error', data: 'one\ntwo' },
    message('no space\n two spaces'),
    message(''),
  ]

  it('reads every line ending, comments, names and several data lines', () => {
    expect(parse(mixed)).toEqual(expected)
  })

  it('gives the same events however the text is cut', () => {
    for (let size = 1; size <= mixed.length; size++) expect(parse(mixed, size), `pieces of ${size}`).toEqual(expected)
  })

  it('does not take a CRLF cut in two for an empty line', () => {
    const parser = new SseParser()
    expect(parser.push('data: a\r')).toEqual([])
    expect(parser.push('\ndata: b\n\n')).toEqual([message('a\nb')])
  })

  it('drops an event that the stream did not finish', () => {
    expect(parse('data: whole\n\ndata: half\n')).toEqual([message('whole')])
    expect(parse('data: half')).toEqual([])
  })

  it('ends the last event at a CR that nothing follows', () => {
    expect(parse('data: a\r\r')).toEqual([message('a')])
  })

  it('ignores fields it does not know and an event without data', () => {
    expect(parse('retry: 10\nfoo: bar\n\nevent: ping\n\ndata: x\n\n')).toEqual([message('x')])
  })
})

describe('readSse', () => {
  it('joins characters that were cut between two chunks', async () => {
    const bytes = new TextEncoder().encode('data: grüße 🚀\n\ndata: [DONE]\n\n')
    for (let cut = 1; cut < bytes.length; cut++) {
      const events: SseEvent[] = []
      for await (const event of readSse(body(bytes.slice(0, cut), bytes.slice(cut)).stream)) events.push(event)
      expect(events).toEqual([message('grüße 🚀'), message('[DONE]')])
    }
  })

  it('closes the response when the reader stops early', async () => {
    const encoder = new TextEncoder()
    const source = body(encoder.encode('data: 1\n\n'), encoder.encode('data: 2\n\n'))
    for await (const event of readSse(source.stream)) {
      expect(event).toEqual(message('1'))
      break
    }
    expect(source.cancelled()).toBe(true)
  })
})
