import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vitest/config'

// `npm run dev` serves the page with hot reload and hands API calls to a running `headstart serve`.
const server = process.env.HEADSTART_URL ?? 'http://127.0.0.1:8457'

export default defineConfig({
  plugins: [svelte()],
  build: {
    // The webview is Safari's engine on the oldest macOS that the app supports.
    target: ['safari16', 'chrome111'],
    // The content security policy allows images from the page's own origin only, so nothing is inlined.
    assetsInlineLimit: 0,
  },
  server: {
    host: '127.0.0.1',
    port: 5173,
    strictPort: true,
    proxy: { '/v1': server, '/health': server, '/api': server },
  },
  test: { include: ['src/**/*.test.ts'], environment: 'node', testTimeout: 60_000 },
})
