// What the page knows about the server, kept fresh by polling while the page is visible.

import { ApiError, getHealth, getModels, type Health, type Model, type UnavailableModel } from './api'

const INTERVAL_MS = 2500
const TIMEOUT_MS = 5000
const KEY = 'headstart-api-key'

export class Server {
  /** unknown: not asked yet. */
  connection = $state<'unknown' | 'up' | 'down'>('unknown')
  health = $state<Health | null>(null)
  /** null: not known, because the list was never read or the key is missing. */
  models = $state<Model[] | null>(null)
  unavailable = $state<UnavailableModel[]>([])
  needsKey = $state(false)
  /** Why the model list could not be read, in words; not set for a missing key. */
  modelsError = $state<string | null>(null)
  /** API key, kept for this tab only. */
  key = $state(sessionStorage.getItem(KEY) ?? '')

  #timer: ReturnType<typeof setTimeout> | undefined
  #stopped = false

  /** Starts to ask, and returns how to stop. */
  start(): () => void {
    const onVisible = () => {
      if (!document.hidden) void this.refresh()
    }
    document.addEventListener('visibilitychange', onVisible)
    this.#stopped = false
    void this.refresh()
    return () => {
      this.#stopped = true
      clearTimeout(this.#timer)
      document.removeEventListener('visibilitychange', onVisible)
    }
  }

  useKey(key: string): Promise<void> {
    this.key = key.trim()
    if (this.key === '') sessionStorage.removeItem(KEY)
    else sessionStorage.setItem(KEY, this.key)
    return this.refresh()
  }

  async refresh(): Promise<void> {
    clearTimeout(this.#timer)
    await this.#readHealth()
    if (this.connection === 'up') await this.#readModels()
    clearTimeout(this.#timer)
    if (!this.#stopped && !document.hidden) this.#timer = setTimeout(() => void this.refresh(), INTERVAL_MS)
  }

  async #readHealth(): Promise<void> {
    try {
      this.health = await getHealth({ key: this.key, signal: AbortSignal.timeout(TIMEOUT_MS) })
      this.connection = 'up'
    } catch (error) {
      // Any answer at all, even an error, says that the server is there.
      this.connection = error instanceof ApiError && error.status > 0 ? 'up' : 'down'
    }
  }

  async #readModels(): Promise<void> {
    const key = this.key
    try {
      const list = await getModels({ key, signal: AbortSignal.timeout(TIMEOUT_MS) })
      if (key !== this.key) return
      this.models = list.data
      this.unavailable = list.unavailable ?? []
      this.needsKey = false
      this.modelsError = null
    } catch (error) {
      if (key !== this.key) return
      this.needsKey = error instanceof ApiError && error.needsKey
      if (this.needsKey) {
        this.models = null
        this.unavailable = []
      }
      this.modelsError = this.needsKey ? null : error instanceof ApiError ? error.message : 'The server took too long to answer.'
    }
  }
}
