import { render } from 'preact';
import { html } from 'htm/preact';
import 'uplot/dist/uPlot.min.css';
import './style.css';
import { App } from './app.js';
import { applyTheme } from './settings.js';

applyTheme();
render(html`<${App} />`, document.getElementById('app'));
