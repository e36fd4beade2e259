(kernel, row, withoutKernel, unknown, ask) => {
  const root = document.currentScript.parentElement;
  const config = document.getElementById('jupyter-config-data');
  if (!config) return;  // no Jupyter server's page: the kernel replaces the output instead

  const EVERY_MS = 333, SILENT_MS = 3000;

  // Change what differs: the focus, a selection and an open fold stay.
  const patch = (old, wanted) => {
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== wanted.data) old.data = wanted.data;
      return;
    }
    for (const {name, value} of wanted.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const {name} of [...old.attributes])
      if (name !== 'open' && !wanted.hasAttribute(name)) old.removeAttribute(name);
    const before = [...old.childNodes], after = [...wanted.childNodes];
    after.forEach((node, k) => {
      if (!before[k]) old.append(node);
      else if (before[k].nodeName !== node.nodeName) before[k].replaceWith(node);
      else patch(before[k], node);
    });
    before.slice(after.length).forEach(node => node.remove());
  };

  const show = (place, row) => {
    const parsed = document.createElement('template');
    parsed.innerHTML = row.html;
    patch(place.firstElementChild, parsed.content.firstElementChild);
    const fold = place.querySelector('details');
    if (fold && row.isOpen) fold.open = true;  // also in an output that was just replaced
  };

  // The place of the run's plot: the first picture below, or the empty output that waits for it.
  const plotOf = place => {
    let child = place.closest('.jp-OutputArea-child');
    while ((child = child?.nextElementSibling)) {
      const image = child.querySelector('img');
      const text = child.querySelector('.jp-RenderedText');
      if (image || (text && !text.textContent.trim())) return image ?? text;
    }
  };
  const tail = plot => plot.src?.slice(-80) ?? ' ';  // tells pictures apart
  const showPlot = (place, picture) => {
    const plot = plotOf(place), source = `data:image/png;base64,${picture}`;
    if (!plot || plot.src === source) return;
    const image = plot.src ? plot : plot.appendChild(document.createElement('img'));
    image.src = source;
  };

  const notice = (place, text) => {
    let line = place.querySelector(':scope > p');
    if (!text) return line?.remove();
    if (!line) {
      line = place.appendChild(document.createElement('p'));
      line.style = 'margin:2px 8px;color:var(--jp-ui-font-color2)';
    }
    if (line.textContent !== text) line.textContent = text;
  };

  // One connection to each kernel, for all of its rows.
  const connect = () => {
    const {baseUrl, token} = JSON.parse(config.textContent);
    const url = new URL(`${baseUrl}api/kernels/${kernel}`, location.href).href;
    const session = `nbshare-${Math.random().toString(36).slice(2)}`;
    const query = new URLSearchParams({session_id: session, ...(token ? {token} : {})});
    const rows = new Map();  // by id: {withoutKernel, unknown, places, html, isOver, hasFocus, isOpen}
    let socket = null, timer = null, n = 0;
    let waitsSince = 0, answered = 0;  // for an answer; the number of the last question that had one

    const send = (msg_type, content) => socket.send(JSON.stringify({
      channel: 'control',
      header: {
        msg_id: `${session}-${n++}`, msg_type, session, username: '', version: '5.3',
        date: new Date().toISOString(),
      },
      parent_header: {}, metadata: {}, content,
    }));
    const wanted = () => [...rows].filter(
      ([, row]) => !row.isOver && row.places.some(place => place.isConnected));
    const each = action => wanted().forEach(([, row]) => row.places.forEach(
      place => place.isConnected && action(place, row)));
    const end = row => {
      row.isOver = true;
      const line = document.createElement('div');
      line.style = 'padding:2px 8px';
      // A page that has never heard of the run does not know whether it was over before.
      line.textContent = row.html ? row.withoutKernel : row.unknown;
      for (const place of row.places) {
        notice(place, '');
        place.firstElementChild.replaceWith(line.cloneNode(true));
      }
    };
    const close = () => {
      clearInterval(timer);
      socket?.close();
      timer = socket = null;
    };
    const hear = ({data}) => {
      if (typeof data !== 'string') return;
      const {channel, msg_type, content, parent_header} = JSON.parse(data);
      if (channel !== 'control' || parent_header.session !== session) return;
      const number = Number(parent_header.msg_id.split('-').pop());
      // It answers in order: if not what was asked before, this kernel has been started since.
      if (msg_type === 'kernel_info_reply' && answered < number - 1)
        wanted().forEach(([, row]) => end(row));
      if (msg_type !== `${ask}_reply`) return;
      answered = number;
      waitsSince = 0;
      for (const [id, answer] of Object.entries(content.rows)) {
        const row = rows.get(id);
        if (!row || row.isOver) continue;
        if (answer === null) end(row);
        else if (answer.html) {
          row.html = answer.html;
          row.isOver = answer.is_over;
          for (const place of row.places) {
            notice(place, '');
            show(place, row);
            if (answer.picture) showPlot(place, answer.picture);
          }
        }
      }
    };
    const look = () => {
      const ids = wanted().map(([id]) => id);
      if (!ids.length) return close();
      waitsSince ||= Date.now();
      const silent = Date.now() - waitsSince;
      if (silent > SILENT_MS) {
        each(place => notice(
          place, `The kernel has not answered for ${Math.round(silent / 1000)} s.`));
      }
      if (socket.readyState > WebSocket.OPEN) open();
      if (socket.readyState !== WebSocket.OPEN) return;
      const seen = wanted().map(([id, {places}]) => [
        id, places.filter(place => place.isConnected).map(plotOf).filter(Boolean).map(tail)]);
      send(ask, {rows: ids, pictures: Object.fromEntries(seen)});
      if (silent > SILENT_MS / 2) send('kernel_info_request', {});
    };
    const open = () => {
      socket = new WebSocket(`${url.replace(/^http/, 'ws')}/channels?${query}`);
      socket.onopen = look;
      socket.onmessage = hear;
    };
    const begin = () => {
      if (timer !== null) return;
      waitsSince = 0;
      timer = setInterval(look, EVERY_MS);
      open();
    };
    const isThere = fetch(url, token ? {headers: {Authorization: `token ${token}`}} : {})
      .then(answer => answer.ok, () => true);
    return {
      follow(id, withoutKernel, unknown, place) {
        const row = rows.get(id)
          ?? {withoutKernel, unknown, places: [], html: '', isOver: false};
        if (row.html && !row.isOver) show(place, row);
        if (row.hasFocus) place.querySelector('button')?.focus();  // its output was just replaced
        // It does not bubble.
        place.addEventListener('toggle', event => { row.isOpen = event.target.open; }, true);
        place.addEventListener('focusin', () => { row.hasFocus = true; });
        // Later: while an output is replaced this one is still there.
        place.addEventListener('focusout', () => setTimeout(() => {
          if (place.isConnected && !place.contains(document.activeElement)) row.hasFocus = false;
        }));
        row.places = [...row.places.filter(other => other.isConnected), place];
        row.isOver = false;  // the output of a map that is over may be taken by the next
        rows.set(id, row);
        place.addEventListener('click', event => {
          const button = event.target.closest('button');
          if (!button || socket?.readyState !== WebSocket.OPEN) return;
          button.disabled = true;
          button.textContent = 'stopping…';
          send(ask, {stop: id, rows: [id]});
        });
        isThere.then(found => found ? begin() : end(row));
      },
    };
  };

  const kernels = window.nbshareKernels ??= {};
  (kernels[kernel] ??= connect()).follow(row, withoutKernel, unknown, root);
}
