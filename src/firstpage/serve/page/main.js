<p>main.js
