{% include "tip.js" %}
{% include "browser.js" %}
