window.nbsharePointer ??= (() => {
  const tables = new WeakMap();
  const label = document.createElement('div');
  label.setAttribute('role', 'tooltip');
  label.style = 'position:fixed;z-index:9999;pointer-events:none;white-space:pre;display:none;'
    + 'padding:3px 8px;border-radius:3px;font-size:12px;line-height:1.4;'
    + 'font-variant-numeric:tabular-nums;color:var(--jp-ui-font-color1,#111);'
    + 'background:var(--jp-layout-color1,#fff);border:1px solid var(--jp-border-color1,#bbb)';

  const read = async source => {
    const png = new DataView(await (await fetch(source)).arrayBuffer());
    if (png.byteLength < 45 || png.getUint32(37) !== 0x6e62564c) return null;
    const packed = new Blob([new Uint8Array(png.buffer, 41, png.getUint32(33))]);
    const whole = packed.stream().pipeThrough(new DecompressionStream('deflate'));
    const bytes = await new Response(whole).arrayBuffer();
    const n = new DataView(bytes).getUint32(0);
    const plots = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, n)));
    let start = 4 + n;
    for (const plot of plots) {
      plot.n = plot.shape[0] * plot.shape[1] * plot.shape[2];
      plot.bytes = new Uint8Array(bytes, start, 4 * plot.n);
      start += 4 * plot.n;
    }
    return plots;
  };

  const number = new DataView(new ArrayBuffer(8));
  const value = (plot, k) => {
    for (let i = 0; i < 4; i++) number.setUint8(i, plot.bytes[i * plot.n + k]);
    return number.getFloat64(0);
  };
  const text = (plot, k) => {
    if (plot.texts) return plot.texts[k];
    const v = value(plot, k), size = Math.abs(v);
    if (isNaN(v)) return plot.bytes[k] === 255 ? 'no result' : 'NaN';
    if (plot.categories) return plot.categories[v];
    if (size === Infinity) return v > 0 ? 'inf' : '−inf';
    if (Number.isInteger(v) && size < 1048576) return `${v}`;
    return size >= 1e4 || size < 1e-4 ? v.toExponential(3) : `${+v.toPrecision(4)}`;
  };
  const cell = (edges, place) => {
    const isDown = edges[0] > edges[edges.length - 1];
    const k = edges.findIndex(edge => isDown ? edge < place : edge > place) - 1;
    return k === -2 ? edges.length - 2 : Math.max(k, 0);
  };
  const nearest = (plot, column, y) => {
    const [at0, at1, low, high, isLog] = plot.scale;
    const on = isLog ? Math.log10 : v => v;
    let best = 0, least = Infinity;
    for (let row = 0; row < plot.shape[0]; row++) {
      const v = value(plot, (row * plot.shape[1] + column) * plot.shape[2]);
      const place = at0 + (on(v) - on(low)) / (on(high) - on(low)) * (at1 - at0);
      if (Math.abs(place - y) < least) { least = Math.abs(place - y); best = row; }
    }
    return best;
  };
  const words = (plots, x, y) => {
    const plot = plots.find(({box}) => box[0] <= x && x <= box[2] && box[1] <= y && y <= box[3]);
    if (!plot) return '';
    const [rows, columns, each] = plot.shape;
    const column = cell(plot.x.at, x);
    const row = plot.y ? cell(plot.y.at, y) : nearest(plot, column, y);
    const k = row * columns + column;
    const [name, unit] = plot.names[Math.min(row, plot.names.length - 1)];
    const numbers = [...Array(each).keys()].map(i => text(plot, k * each + i));
    const values = [...new Set(numbers)].length === 1 ? numbers[0] : numbers.join(plot.joined);
    const isNumber = /\d/.test(values);
    const lines = [plot.x.texts[column], plot.y?.texts[row], plot.rows[row],
      `${name} = ${values}${isNumber && unit ? ` ${unit}` : ''}`, isNumber ? plot.note : ''];
    if (plot.items) {
      const [n, all] = plot.items, first = Math.ceil(k * n);
      const last = Math.min(Math.ceil((k + 1) * n), all) - 1;
      if (first >= all) return '';
      lines[0] = `item = ${first}${last > first ? ` to ${last}` : ''}`;
    }
    return lines.filter(Boolean).join('\n');
  };

  const hear = async ({target, clientX, clientY}) => {
    const hide = () => { label.style.display = 'none'; };
    if (target?.tagName !== 'IMG' || !/^(data|blob):/.test(target.src)) return hide();
    let known = tables.get(target);
    if (known?.source !== target.src) {
      known = {source: target.src, plots: read(target.src).catch(() => null)};
      tables.set(target, known);
    }
    const plots = await known.plots;
    const {left, top, width, height} = target.getBoundingClientRect();
    const shown = plots && words(
      plots, (clientX - left) / width * 10000, (clientY - top) / height * 10000);
    if (!shown || !target.isConnected) return hide();
    label.textContent = shown;
    label.style.display = 'block';
    document.body.append(label);
    const right = clientX + 14 + label.offsetWidth, isBelow = clientY > 80;
    label.style.left = `${right > innerWidth ? clientX - 14 - label.offsetWidth : clientX + 14}px`;
    label.style.top = `${isBelow ? clientY - 10 - label.offsetHeight : clientY + 18}px`;
  };
  for (const name of ['pointermove', 'pointerover', 'pointerdown'])
    document.addEventListener(name, hear, {passive: true});
  document.addEventListener('scroll', () => { label.style.display = 'none'; }, true);
  return true;
})();
