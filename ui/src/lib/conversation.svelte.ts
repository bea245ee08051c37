// The chat's state: a list of turns, at most one of them being answered.

import { streamChat, type ChatMessage, type Usage } from './api'

export type Turn = {
  id: number
  prompt: string
  text: string
  reasoning: string
  /** waiting: nothing has come yet. stopped: by the user. */
  state: 'waiting' | 'streaming' | 'done' | 'stopped' | 'failed'
  error: string | null
  /** The server's finish_reason. */
  finish: string | null
  usage: Usage | null
}

export class Conversation {
  turns = $state<Turn[]>([])
  #controller: AbortController | null = null
  #nextId = 1

  get busy(): boolean {
    const state = this.turns.at(-1)?.state
    return state === 'waiting' || state === 'streaming'
  }

  /** What the model is to see. A turn that got no reply is left out: two user turns in a row break some chat templates. */
  messages(system: string, prompt: string): ChatMessage[] {
    const messages: ChatMessage[] = []
    if (system.trim() !== '') messages.push({ role: 'system', content: system })
    for (const turn of this.turns) {
      if (turn.text === '') continue
      messages.push({ role: 'user', content: turn.prompt }, { role: 'assistant', content: turn.text })
    }
    messages.push({ role: 'user', content: prompt })
    return messages
  }

  /** Sends a prompt and follows the reply to its end. Never throws: a failure is kept in the turn. */
  async send(request: { model: string; system: string; prompt: string; key: string }): Promise<void> {
    if (this.busy) return
    const messages = this.messages(request.system, request.prompt)
    this.turns.push({
      id: this.#nextId++,
      prompt: request.prompt,
      text: '',
      reasoning: '',
      state: 'waiting',
      error: null,
      finish: null,
      usage: null,
    })
    // Read back, so that the changes below go through Svelte's proxy and are seen.
    const turn = this.turns[this.turns.length - 1]!
    const controller = new AbortController()
    this.#controller = controller
    try {
      const reply = streamChat({ model: request.model, messages }, { key: request.key, signal: controller.signal })
      for await (const event of reply) {
        turn.state = 'streaming'
        if (event.type === 'text') turn.text += event.text
        else if (event.type === 'reasoning') turn.reasoning += event.text
        else if (event.type === 'finish') turn.finish = event.reason
        else turn.usage = event.usage
      }
      turn.state = 'done'
    } catch (error) {
      if (controller.signal.aborted) {
        turn.state = 'stopped'
      } else {
        turn.state = 'failed'
        turn.error = error instanceof Error ? error.message : String(error)
      }
    } finally {
      if (this.#controller === controller) this.#controller = null
    }
  }

  stop(): void {
    this.#controller?.abort()
  }

  clear(): void {
    this.stop()
    this.turns = []
  }
}
