// The server's HTTP API as the dashboard uses it: GET /health, GET /v1/models, POST /v1/chat/completions.

import { readSse } from './sse'

export type Health = {
  status: string
  version?: string
  /** Folders in which the server looks for models; told only to those who have the key. */
  model_dirs?: string[]
}

export type Model = {
  id: string
  /** What the server says about the model: loaded, loading, not_loaded. */
  state?: string
}

/** A model that was found and cannot be used. */
export type UnavailableModel = { id: string; reason: string }

export type ModelList = { data: Model[]; unavailable?: UnavailableModel[] }

export type Role = 'system' | 'user' | 'assistant'
export type ChatMessage = { role: Role; content: string }

export type Usage = {
  prompt_tokens: number
  completion_tokens: number
  prompt_tokens_details?: { cached_tokens?: number } | null
  /** Seconds from the request's arrival to the first token. */
  time_to_first_token?: number | null
  /** Decode speed in tokens per second. */
  generation_tokens_per_second?: number | null
}

export type ChatEvent =
  | { type: 'text'; text: string }
  | { type: 'reasoning'; text: string }
  | { type: 'finish'; reason: string }
  | { type: 'usage'; usage: Usage }

/** A failure in words that can be shown as they are. `status` is 0 when no answer came at all. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status = 0,
  ) {
    super(message)
    this.name = 'ApiError'
  }

  get needsKey(): boolean {
    return this.status === 401
  }
}

type CallOptions = { key?: string; signal?: AbortSignal; body?: unknown }

async function call(path: string, { key, signal, body }: CallOptions): Promise<Response> {
  const headers: Record<string, string> = {}
  if (key) headers['authorization'] = `Bearer ${key}`
  if (body !== undefined) headers['content-type'] = 'application/json'
  let response: Response
  try {
    response = await fetch(path, {
      method: body === undefined ? 'GET' : 'POST',
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: 'no-store',
    })
  } catch (error) {
    if (signal?.aborted) throw error
    throw new ApiError('The server cannot be reached. Is Headstart still running?')
  }
  if (!response.ok) throw await errorOf(response)
  return response
}

/** OpenAI's error object where there is one, else the body's text, else the status. */
async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => '')
  const fallback = `The server answered with status ${response.status}${response.statusText ? ` (${response.statusText})` : ''}.`
  try {
    return new ApiError(messageIn(JSON.parse(text)) ?? fallback, response.status)
  } catch {
    const plain = text.trim()
    return new ApiError(plain !== '' && plain.length <= 300 && !plain.startsWith('<') ? plain : fallback, response.status)
  }
}

/** The message of `{"error": {"message": ...}}` or `{"error": "..."}`, if that is what the value is. */
function messageIn(value: unknown): string | undefined {
  if (typeof value !== 'object' || value === null || !('error' in value)) return undefined
  const error = value.error
  if (typeof error === 'string' && error !== '') return error
  if (typeof error === 'object' && error !== null && 'message' in error) {
    if (typeof error.message === 'string' && error.message !== '') return error.message
  }
  return error ? 'The server reported an error without saying which.' : undefined
}

export async function getHealth(options: CallOptions = {}): Promise<Health> {
  return (await call('/health', options)).json() as Promise<Health>
}

export async function getModels(options: CallOptions = {}): Promise<ModelList> {
  return (await call('/v1/models', options)).json() as Promise<ModelList>
}

type Chunk = {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null }[]
  usage?: Usage | null
}

/** Streams one reply. Throws an ApiError when the server refuses, fails midway or breaks off; an abort throws as fetch does. */
export async function* streamChat(
  request: { model: string; messages: ChatMessage[] },
  options: { key?: string; signal?: AbortSignal } = {},
): AsyncGenerator<ChatEvent> {
  const body = { ...request, stream: true, stream_options: { include_usage: true } }
  const response = await call('/v1/chat/completions', { ...options, body })
  if (response.body === null) throw new ApiError('The server sent an empty answer.', response.status)
  let finished = false
  try {
    for await (const event of readSse(response.body)) {
      if (event.data === '[DONE]') return
      let chunk: Chunk
      try {
        chunk = JSON.parse(event.data) as Chunk
      } catch {
        throw new ApiError('The server sent something that is not JSON in the middle of the reply.')
      }
      const failure = messageIn(chunk)
      if (failure !== undefined) throw new ApiError(failure)
      const choice = chunk.choices?.[0]
      if (choice?.delta?.reasoning_content) yield { type: 'reasoning', text: choice.delta.reasoning_content }
      if (choice?.delta?.content) yield { type: 'text', text: choice.delta.content }
      if (choice?.finish_reason) {
        finished = true
        yield { type: 'finish', reason: choice.finish_reason }
      }
      if (chunk.usage) yield { type: 'usage', usage: chunk.usage }
    }
  } catch (error) {
    if (error instanceof ApiError || options.signal?.aborted) throw error
    throw new ApiError('The connection broke off in the middle of the reply.')
  }
  if (!finished) throw new ApiError('The reply ended before it was complete.')
}
