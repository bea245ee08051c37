import { mount } from 'svelte'
import App from './App.svelte'
import './tokens.css'
import './app.css'

const target = document.getElementById('app')
if (target === null) throw new Error('index.html has no element #app')

export default mount(App, { target })
