(kernel, message, row, map) => {
  const place = document.currentScript.parentElement;
  const config = document.getElementById('jupyter-config-data');
  if (!config) return;
  const {baseUrl, token} = JSON.parse(config.textContent);
  const url = new URL(`${baseUrl}api/kernels/${kernel}`, location.href).href;
  // The row is drawn anew some times a second, and the button with it: what is known is kept here.
  const state = (window.nbshareStop ??= {})[map] ??= {text: '■\uFE0E Stop'};
  state.found ??= fetch(url, token ? {headers: {Authorization: `token ${token}`}} : {})
    .then(answer => answer.ok, () => false);
  state.found.then(found => {
    if (!found || state.isOver) return;
    const button = document.createElement('button');
    button.title = 'End this map now, keep what is done, and go on with the notebook';
    button.style = `font:inherit;font-size:11px;line-height:15px;padding:0 8px;margin:0;
      color:var(--jp-ui-font-color1);background:var(--jp-layout-color2);cursor:pointer;
      border:1px solid var(--jp-border-color1);border-radius:3px`;
    const show = () => {
      button.textContent = state.text;
      button.disabled = state.isPressed;
    };
    const tell = text => {
      state.text = text;
      show();
    };
    const press = () => {
      if (state.isPressed) return;
      state.isPressed = true;
      tell('stopping…');
      const session = `nbshare-${Math.random().toString(36).slice(2)}`;
      const query = new URLSearchParams({session_id: session, ...(token ? {token} : {})});
      const socket = new WebSocket(`${url.replace(/^http/, 'ws')}/channels?${query}`);
      const timer = setTimeout(() => {
        tell('no answer: ■\uFE0E in the toolbar stops');
        socket.close();
      }, 3000);
      socket.onopen = () => socket.send(JSON.stringify({
        channel: 'control',
        header: {
          msg_id: session, msg_type: message, session, username: '', version: '5.3',
          date: new Date().toISOString(),
        },
        parent_header: {}, metadata: {}, content: {row},
      }));
      socket.onmessage = ({data}) => {
        if (typeof data !== 'string') return;
        const {channel, msg_type, content} = JSON.parse(data);
        if (channel !== 'control' || msg_type !== `${message}_reply`) return;
        clearTimeout(timer);
        socket.close();
        state.isOver = !content.stopped;
        if (state.isOver) button.remove();
        else tell('stopped');
      };
    };
    // Not at the click: between the button's going down and up it may have been replaced.
    button.onpointerdown = event => {
      event.preventDefault();
      if (event.button === 0) press();
    };
    button.onmousedown = event => event.preventDefault();  // the focus stays where it is
    button.onclick = press;  // by key
    show();
    place.replaceChildren(button);
    // A page that was loaded anew hears no more of outputs that were made before.
    setTimeout(() => {
      if (place.isConnected) place.prepend('no news: show the job in a cell ');
    }, 4000);
  });
}
