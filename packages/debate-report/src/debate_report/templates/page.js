{% if live %}
{% include "live.js" %}
{% endif %}
{% include "tip.js" %}
{% include "browser.js" %}
{% include "sampler.js" %}
{% include "play.js" %}
