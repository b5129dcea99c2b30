/* SPDX-License-Identifier: Apache-2.0 */
/* Draws what the page's data say. Names come from files of strangers: they reach the page as text, never as markup. */
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const COLOURS = ['not cut', 'cut on axis 0', 'cut on axis 1', 'cut on axis 2', 'cut on a later axis', 'cut on several axes', 'row-major runs'];
  const ROWS_FOCUSABLE = 400, PIECES_LISTED = 300;

  /* ---- words ---- */
  const hidden = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\uffff]/g;
  const shown = (text) => String(text).replace(hidden, (c) => '\\u{' + c.codePointAt(0).toString(16) + '}');
  const size = (bytes) => {
    const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
    let unit = 0;
    for (; bytes >= 1000 && unit < 5; unit++) bytes /= 1000;
    return (unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)) + '\u00a0' + units[unit];
  };
  const many = (count, word) => count.toLocaleString('en') + ' ' + word + (count === 1 ? '' : 's');

  /* ---- elements ---- */
  const SVG = 'http://www.w3.org/2000/svg';
  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    for (const child of [].concat(children === undefined ? [] : children)) node.append(child);
    return node;
  }
  const make = (name, attributes, children) => fill(document.createElement(name), attributes, children);
  const draw = (name, attributes, children) => fill(document.createElementNS(SVG, name), attributes, children);
  const number = (x) => Math.round(x * 100) / 100;
  const box = (x, y, w, h) => `M${number(x)} ${number(y)}h${number(w)}v${number(h)}h${number(-w)}z`;
  /* Lines across a box, for what is a copy. */
  function hatch(x, y, w, h) {
    let path = '';
    for (let at = 5; at < w + h; at += 5)
      path += `M${number(x + Math.min(at, w))} ${number(y + Math.max(0, at - w))}L${number(x + Math.max(0, at - h))} ${number(y + Math.min(at, h))}`;
    return path;
  }

  /* ---- keys ---- */
  const keyOf = (row, tuple) => row.p.map((part, i) => part + (i < tuple.length ? tuple[i] : '')).join('');
  function groupOf(pattern) {
    const parts = pattern.split(/\.(?![^{]*\})/);
    const keep = Math.max(0, parts.length - 2);
    return [parts.slice(0, keep).join('.'), parts.slice(keep).join('.')];
  }

  /* ---- the map ---- */
  function cellsOf(map, row, width) {
    const h = 18, path = {}, colour = 'k' + row.x;
    let frame = '', copies = '';
    const put = (column, isCopy, top, bottom, left, right) => {
      const w = width - 4, x = column * width + 1.5 + left * w, y = top * h + 1, tall = Math.max(2, (bottom - top) * h), wide = Math.max(2, (right - left) * w);
      path[colour] = (path[colour] || '') + box(x, y, wide, tall);
      if (isCopy) copies += hatch(x, y, wide, tall);
    };
    for (const [column] of row.c) frame += box(column * width + 1.5, 1, width - 4, h);
    if (row.q[0] && row.q[0].length === row.k && row.k <= 512) {
      for (const p of row.q[0]) {
        const one = piece(map, row, p, true), [left, top, right, bottom] = spanOf(row, one);
        put(p[p.length - 1], one.isCopy, top, bottom, left, right);
      }
    } else {
      for (const [column, pieces, replicas, , top, bottom, left, right] of row.c) {
        put(column, replicas && !pieces, top, bottom, left, right);
        if (replicas && pieces) put(column, true, top, bottom, (left + right) / 2, right);
      }
    }
    const svg = draw('svg', { width: map.columns.length * width, height: h + 2, role: 'img', 'aria-label': sayCells(map, row) });
    if (row.m) svg.append(draw('path', { class: 'lost', d: frame || box(1.5, 1, width - 4, h) }));
    svg.append(draw('path', { class: colour, d: path[colour] || '' }));
    if (copies) svg.append(draw('path', { class: 'hatch', d: copies }));
    svg.append(draw('path', { class: row.o ? 'lost-line' : 'frame', d: frame }));
    return svg;
  }

  function sayCells(map, row) {
    const holds = row.c.slice(0, 8).map((c) => map.columns[c[0]][1] + (c[1] ? '' : ' a copy'));
    return shown(`${COLOURS[row.x]}, on ${many(row.c.length, map.unit)}: ${holds.join(', ')}${row.c.length > 8 ? ' and others' : ''}` +
      (row.m ? `; ${many(row.m, 'element')} missing` : '') + (row.o ? `; ${many(row.o, 'element')} held twice` : ''));
  }

  function columnHead(map, width) {
    const longest = Math.max(...map.columns.map((c) => shown(c[0]).length), 1);
    const turned = longest * 6.6 > width - 2, height = turned ? Math.min(120, longest * 5 + 14) : 16;
    const svg = draw('svg', { width: map.columns.length * width + (turned ? 40 : 0), height, role: 'img', 'aria-label': `columns are ${map.unit}s` });
    map.columns.forEach(([label, title, bytes], i) => {
      const x = i * width + width / 2, text = shown(label);
      const node = draw('text', turned ? { x, y: height - 4, transform: `rotate(-50 ${number(x)} ${height - 4})` } : { x, y: height - 4, 'text-anchor': 'middle' },
        text.length > 22 ? '…' + text.slice(-21) : text);
      node.append(draw('title', {}, `${shown(title)}: ${size(bytes)}`));
      svg.append(node);
    });
    return svg;
  }

  function drawRow(map, row, width, body) {
    const [, leaf] = groupOf(row.pattern);
    const button = make('button', { type: 'button', class: 'key', 'aria-expanded': 'false' }, shown(leaf));
    button.append(make('span', { class: 'count' }, row.n > 1 ? ` ×${row.n}` : ''));
    const cut = make('td', { class: 'small' }, row.cut);
    if (row.m) cut.append(make('span', { class: 'gap' }, ' gap'));
    if (row.o) cut.append(make('span', { class: 'gap' }, ' overlap'));
    if (row.r) cut.append(`, ${row.r} cop${row.r === 1 ? 'y' : 'ies'}`);
    const tr = make('tr', { class: 'row' }, [make('th', { scope: 'row', class: 'key' }, button), make('td', { class: 'small' }, row.d),
      make('td', { class: 'small' }, '[' + row.s.join(', ') + ']'), make('td', { class: 'small number' }, size(row.b)), cut, make('td', {}, cellsOf(map, row, width))]);
    tr.addEventListener('click', () => choose(map, row, tr, button));
    body.append(tr);
    return tr;
  }

  function drawMap(map) {
    const width = Math.max(14, Math.min(40, Math.floor(760 / Math.max(1, map.columns.length))));
    const body = make('tbody'), rows = [];
    const groups = new Map();
    for (const row of map.rows) {
      const [module] = groupOf(row.pattern);
      groups.set(module, [...(groups.get(module) || []), row]);
    }
    for (const [module, members] of groups) {
      const head = make('tr', { class: 'group' }, make('th', { colspan: 6, scope: 'colgroup' }, shown(module || 'top level')));
      body.append(head);
      for (const row of members) rows.push([row, drawRow(map, row, width, body), head]);
    }
    const unit = map.per > 1 ? `${map.unit}s, ${map.per} a column` : map.unit + 's';
    const head = make('thead', {}, make('tr', {}, [make('th', { scope: 'col', class: 'key' }, 'tensor'), make('th', { scope: 'col' }, 'type'), make('th', { scope: 'col' }, 'shape'),
      make('th', { scope: 'col', class: 'number' }, 'size'), make('th', { scope: 'col' }, 'cut'), make('th', { scope: 'col' }, [unit, columnHead(map, width)])]));
    const table = make('table', { class: 'map' }, [head, body]);
    const section = make('section', {}, make('h2', {}, shown(map.name)));
    section.append(make('p', { class: 'note' }, shown(`${map.format} · ${many(map.tensors, 'tensor')}, ${size(map.bytes)} · ${many(map.chunks, 'piece')}` +
      (map.replicas ? `, ${map.replicas.toLocaleString('en')} of them copies` : '') + ` on ${many(map.units, map.unit)}`)));
    if (map.gaps) section.append(make('p', { class: 'notice' }, `${many(map.gaps, 'tensor')} ${map.gaps === 1 ? 'is' : 'are'} not complete: no piece holds the parts that are drawn red.`));
    if (map.overlaps) section.append(make('p', { class: 'notice' }, `${many(map.overlaps, 'tensor')} ${map.overlaps === 1 ? 'has' : 'have'} pieces that overlap and are not equal: drawn red.`));
    if (map.anyhow) section.append(make('p', { class: 'note' }, 'Layers are stored in many ways: the cells of a row are those of its first tensor.'));
    section.append(searchOf(rows), make('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': shown(map.name) + ', table' }, table));
    if (map.leftOut) section.append(make('p', { class: 'note' }, `${many(map.leftOut, 'further row')} left out: --include draws a part.`));
    return section;
  }

  function searchOf(rows) {
    const input = make('input', { type: 'search', placeholder: 'show tensors with …', 'aria-label': 'Show only tensors whose name contains' });
    input.addEventListener('input', () => {
      const word = input.value.toLowerCase(), open = new Set();
      for (const [row, tr] of rows) tr.hidden = !row.pattern.toLowerCase().includes(word);
      for (const [, tr, group] of rows) if (!tr.hidden) open.add(group);
      for (const [, , group] of rows) if (group) group.hidden = !open.has(group) && word !== '';
    });
    return make('div', { class: 'tools' }, input);
  }

  /* ---- a tensor ---- */
  const details = document.getElementById('details');
  function choose(map, row, tr, button) {
    for (const other of document.querySelectorAll('tr.selected')) other.classList.remove('selected');
    for (const other of document.querySelectorAll('button.key[aria-expanded=true]')) other.setAttribute('aria-expanded', 'false');
    tr.classList.add('selected');
    button.setAttribute('aria-expanded', 'true');
    document.querySelector('main').classList.add('chosen');
    showTensor(map, row, 0);
  }

  function showTensor(map, row, index) {
    const key = keyOf(row, row.t[index] || []);
    details.replaceChildren(make('h3', { id: 'tensor' }, shown(key)));
    if (row.t.length > 1) {
      const select = make('select', { 'aria-label': 'Tensor of this row' }, row.t.map((tuple, i) => make('option', { value: i }, shown(keyOf(row, tuple)))));
      select.value = index;
      select.addEventListener('change', () => { showTensor(map, row, Number(select.value)); details.querySelector('select').focus(); });
      details.append(make('div', { class: 'tools' }, select));
    }
    if (row.n > row.t.length) details.append(make('p', { class: 'note' }, `${row.n - row.t.length} further tensors are stored in the same way.`));
    details.append(make('p', {}, `${row.d} [${row.s.join(', ')}], ${size(row.b / row.n)}, ${COLOURS[row.x]}` + (row.m ? `, ${many(row.m, 'element')} missing` : '')));
    const known = row.q[index], pieces = (known || row.q[0] || []).map((p) => piece(map, row, p, known));
    if (!known && pieces.length) details.append(make('p', { class: 'note' }, 'Cut as the first tensor of the row; the page leaves out where in the files: reshard ls --chunks tells.'));
    if (row.k > pieces.length) details.append(make('p', { class: 'note' }, `${many(row.k, 'piece')}; the page holds the first ${pieces.length}: reshard ls --chunks lists all.`));
    if (pieces.length) details.append(tilesOf(row, pieces, row.k > pieces.length), listOf(map, pieces));
  }

  /* A piece as the data have it: file, writer, offset, bytes, flags, start…, extent…, perhaps begin and count of a run, and its column. */
  function piece(map, row, p, known) {
    const rank = row.s.length, start = p.slice(5, 5 + rank), extent = p.slice(5 + rank, 5 + 2 * rank), run = p.slice(5 + 2 * rank, -1);
    return { file: known ? map.files[p[0]] : '', writer: p[1], offset: p[2], bytes: p[3], isCopy: p[4] & 1, isInside: p[4] & 2, start, extent, run, known,
      where: (rank ? '[' + start.map((s, i) => `${s}:${s + extent[i]}`).join(', ') + ']' : 'all') + (run.length ? `, elements ${run[0]}:${run[0] + run[1]}` : '') };
  }
  const ownerOf = (p) => (p.writer >= 0 ? `rank ${p.writer}` : shown(p.file));

  function spanOf(row, p) {
    const span = (axis) => (axis < 0 || !row.s[axis] ? [0, 1] : [p.start[axis] / row.s[axis], (p.start[axis] + p.extent[axis]) / row.s[axis]]);
    const [left, right] = span(row.h);
    let [top, bottom] = span(row.v);
    if (p.run.length) {
      const volume = p.extent.reduce((a, b) => a * b, 1) || 1, tall = bottom - top;
      bottom = top + (p.run[0] + p.run[1]) / volume * tall;
      top += p.run[0] / volume * tall;
    }
    return [left, top, right, bottom];
  }

  function tilesOf(row, pieces, isPart) {
    const w = 400, ratio = row.h >= 0 && row.v >= 0 ? row.s[row.v] / Math.max(1, row.s[row.h]) : 0.2;
    const h = Math.max(70, Math.min(360, w * (row.h >= 0 || row.v < 0 ? ratio : 0.6)));
    const svg = draw('svg', { class: 'tiles', viewBox: `0 0 ${w + 2} ${h + 20}`, width: w + 2, height: h + 20, role: 'group', 'aria-label': 'pieces of the tensor' });
    svg.append(draw('rect', { x: 1, y: 1, width: w, height: h, class: isPart || !row.m ? 'frame' : 'lost' }));
    pieces.forEach((p, i) => {
      const [left, top, right, bottom] = spanOf(row, p), x = 1 + left * w, y = 1 + top * h, wide = Math.max(1, (right - left) * w), tall = Math.max(1, (bottom - top) * h);
      if (!p.isCopy) {
        const rect = draw('rect', { x, y, width: wide, height: tall, class: 'piece k' + row.x, role: 'button', tabindex: i < ROWS_FOCUSABLE ? 0 : -1, 'data-piece': i,
          'fill-opacity': i % 2 ? 0.78 : 1, 'aria-label': `${ownerOf(p)}, ${p.where}, ${p.known ? `file ${shown(p.file)}, offset ${p.offset}` : ''}` });
        rect.append(draw('title', {}, `${ownerOf(p)}  ${p.where}`));
        rect.addEventListener('click', () => mark(i));
        rect.addEventListener('focus', () => mark(i));
        svg.append(rect);
      }
      if (!p.isCopy && wide > 24 && tall > 13)
        svg.append(draw('text', { x: x + wide / 2, y: y + tall / 2, class: 'label', 'aria-hidden': 'true' }, p.writer >= 0 ? String(p.writer) : String(i)));
    });
    if (row.o) overlapsOf(row, pieces).forEach(([left, top, right, bottom]) => svg.append(draw('path', { class: 'lost overlap', d: box(1 + left * w, 1 + top * h, (right - left) * w, (bottom - top) * h) })));
    const axes = row.h >= 0 ? `across: axis ${row.h}` + (row.v >= 0 ? `, down: axis ${row.v}` : '') : row.v >= 0 ? `down: axis ${row.v}` : 'one element';
    svg.append(draw('text', { x: 1, y: h + 15 }, axes));
    return svg;
  }

  /* Where two pieces of the picture meet, of the first pieces. */
  function overlapsOf(row, pieces) {
    const spans = pieces.filter((p) => !p.isCopy).slice(0, 512).map((p) => spanOf(row, p)), found = [];
    spans.forEach((a, i) => spans.slice(0, i).forEach((b) => {
      const both = [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
      if (both[0] < both[2] - 1e-9 && both[1] < both[3] - 1e-9) found.push(both);
    }));
    return found;
  }

  function listOf(map, pieces) {
    const columns = ['rank', 'holds', 'file', 'offset', 'bytes'];
    const body = make('tbody', {}, pieces.slice(0, PIECES_LISTED).map((p, i) => make('tr', { 'data-piece': i },
      [p.writer >= 0 ? p.writer : '–', p.where + (p.isCopy ? ' copy' : ''), p.known ? shown(p.file) : '–', p.known ? (p.isInside ? 'in ' : '') + p.offset : '–', p.known ? p.bytes : '–']
        .map((text, at) => make('td', { class: at > 2 ? 'number' : columns[at] }, String(text))))));
    const table = make('table', { class: 'pieces' }, [make('thead', {}, make('tr', {}, columns.map((name, at) => make('th', { scope: 'col', class: at > 2 ? 'number' : '' }, name)))), body]);
    const out = make('div', {}, make('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'pieces' }, table));
    if (pieces.some((p) => p.isInside)) out.append(make('p', { class: 'note' }, '“in N”: within the record of the file that begins at N.'));
    if (pieces.length > PIECES_LISTED) out.append(make('p', { class: 'note' }, `${pieces.length - PIECES_LISTED} further pieces are not listed.`));
    return out;
  }

  function mark(index) {
    for (const other of details.querySelectorAll('.on')) other.classList.remove('on');
    for (const node of details.querySelectorAll(`[data-piece="${index}"]`)) {
      node.classList.add('on');
      if (node.tagName === 'TR') node.scrollIntoView({ block: 'nearest' });
    }
  }

  /* ---- bytes that move ---- */
  function shade(cell, share) {
    cell.style.backgroundColor = `rgba(var(--heat), ${number(share)})`;
    if (share > 0.62) cell.classList.add('strong');
  }

  function drawMoves(from, to, moves) {
    const most = Math.max(...moves.map((m) => m[2]), 1), all = moves.reduce((sum, m) => sum + m[2], 0), table = new Map(moves.map((m) => [m[0] + '/' + m[1], m[2]]));
    const bothRanks = from.unit === 'rank' && to.unit === 'rank' && from.per === 1 && to.per === 1;
    const stays = bothRanks ? moves.reduce((sum, m) => sum + (m[0] === m[1] ? m[2] : 0), 0) : 0;
    const head = make('tr', {}, [make('th', { scope: 'col' }, `from ${from.unit} ↓ to ${to.unit} →`), ...to.columns.map((c) => make('th', { scope: 'col', title: shown(c[1]) }, shown(c[0])))]);
    const rowOf = (label, title, i) => make('tr', {}, [make('th', { scope: 'row', title: shown(title) }, shown(label)), ...to.columns.map((c, j) => {
      const bytes = table.get(i + '/' + j) || 0, cell = make('td', { title: `${shown(title)} to ${shown(c[1])}: ${size(bytes)}` }, bytes ? size(bytes) : '');
      if (bytes) shade(cell, 0.12 + 0.88 * Math.sqrt(bytes / most));
      if (bothRanks && i === j) cell.classList.add('stays');
      return cell;
    })]);
    const rows = from.columns.map((c, i) => rowOf(c[0], c[1], i));
    if (moves.some((m) => m[0] < 0)) rows.push(rowOf('made', 'values that no file holds', -1));
    return make('section', {}, [make('h2', {}, 'What moves'), make('p', {}, bothRanks ? `${size(all - stays)} of ${size(all)} change their rank; ${size(stays)} stay (outlined).` : `${size(all)} are written.`),
      make('div', { class: 'scroll fit', tabindex: 0, role: 'region', 'aria-label': 'bytes that move, table' }, make('table', { class: 'heat' }, [make('thead', {}, head), make('tbody', {}, rows)]))]);
  }

  /* ---- legend ---- */
  function legend(maps) {
    const seen = new Set(maps.flatMap((map) => map.rows.map((row) => row.x))), list = make('ul', { class: 'legend', 'aria-label': 'Legend' });
    const shapes = { 0: box(1, 1, 28, 16), 1: box(1, 1, 28, 7), 2: box(1, 1, 12, 16), 3: box(9, 4, 14, 10), 4: box(9, 4, 14, 10), 5: box(1, 1, 13, 8), 6: box(1, 5, 28, 5) };
    const item = (content, text) => list.append(make('li', {}, [draw('svg', { viewBox: '0 0 30 18', 'aria-hidden': 'true' }, content), text]));
    for (const colour of [...seen].sort())
      item([draw('path', { class: 'k' + colour, d: shapes[colour] }), draw('path', { class: 'frame', d: box(1, 1, 28, 16) })], COLOURS[colour]);
    if (maps.some((map) => map.replicas)) item([draw('path', { class: 'k0', d: box(1, 1, 28, 16) }), draw('path', { class: 'hatch', d: hatch(1, 1, 28, 16) })], 'hatched: a copy (replica)');
    if (maps.some((map) => map.overlaps)) item(draw('path', { class: 'lost-line', d: box(1, 1, 28, 16) }), 'red frame: pieces overlap');
    if (maps.some((map) => map.gaps)) item(draw('path', { class: 'lost', d: box(1, 1, 28, 16) }), 'red: nothing holds it');
    return list;
  }

  /* ---- what differs ---- */
  const MARKS = { missing: '−', unexpected: '+', shape: 'S', dtype: 'T', nan: 'N' };
  function drawDiff(diff) {
    const columns = diff.modules, most = Math.max(...diff.cells.map((c) => c.error), 1e-30), least = Math.min(...diff.cells.filter((c) => c.error > 0).map((c) => c.error), most);
    const strength = (error) => (error > 0 ? (most === least ? 1 : 0.25 + 0.75 * Math.log(error / least) / Math.log(most / least)) : 0);
    const at = new Map(diff.cells.map((c) => [c.layer + '/' + c.module, c]));
    const loose = diff.layers.indexOf('–'), inLayers = columns.map((name, j) => j).filter((j) => diff.layers.some((l, i) => i !== loose && at.has(i + '/' + j)));
    const section = make('section', {}, [make('h2', {}, 'Layers and modules'), make('p', {}, shown(diff.verdict))]);
    const grid = (label, head, rows) => section.append(make('div', { class: 'scroll fit', tabindex: 0, role: 'region', 'aria-label': label + ', table' },
      make('table', { class: 'heat' }, [make('thead', {}, make('tr', {}, head)), make('tbody', {}, rows)])));
    const turned = (text) => make('th', { scope: 'col', class: 'turned' }, make('span', {}, shown(text)));
    if (inLayers.length)
      grid('differences by layer', [make('th', { scope: 'col' }, 'layer'), ...inLayers.map((j) => turned(columns[j]))], diff.layers.flatMap((name, i) => (i === loose ? [] :
        [make('tr', {}, [make('th', { scope: 'row' }, shown(name)), ...inLayers.map((j) => diffCell(diff, at.get(i + '/' + j), strength, `layer ${name} ${columns[j]}`))])])));
    if (loose >= 0) {
      section.append(make('h2', {}, 'Outside of layers'));
      grid('differences outside of layers', [make('th', { scope: 'col' }, 'tensors'), make('th', { scope: 'col' }, 'differ')], columns.flatMap((name, j) => (at.has(loose + '/' + j) ?
        [make('tr', {}, [make('th', { scope: 'row', class: 'name' }, shown(name)), diffCell(diff, at.get(loose + '/' + j), strength, name)])] : [])));
    }
    section.append(make('p', { class: 'note' }, 'Shade: logarithm of the largest relative difference. Bar: share of elements that differ. ' +
      '− missing in B, + only in B, S other shape, T other type, N not a number on one side, = equal.'));
    return section;
  }

  function diffCell(diff, cell, strength, name) {
    if (!cell) return make('td', {}, '');
    const share = cell.elements ? cell.changed / cell.elements : 0, mark = cell.marks.map((m) => MARKS[m] || '!').join('');
    const text = mark || (cell.error > 0 || share > 0 ? (cell.error > 0 ? cell.error.toExponential(0) : '≠') : '=');
    const button = make('button', { type: 'button', 'aria-label': shown(`${name}: ${cell.marks.join(', ')} ${share ? (100 * share).toPrecision(3) + ' % of elements differ' : mark ? '' : 'equal'}`) }, text);
    const td = make('td', { class: 'step' + (mark ? ' lost-cell' : text === '=' ? ' same' : '') }, [button, make('span', { class: 'bar' }, make('i', { style: `width:${number(100 * share)}%` }))]);
    if (!mark && cell.error > 0 && !cell.experts) shade(td, strength(cell.error) * 0.9);
    if (cell.experts) button.append(expertsOf(cell.experts, strength));
    button.addEventListener('click', () => showDiff(diff, cell));
    return td;
  }

  /* The experts of a cell, row by row: shaded as cells are, red where there is a mark, hollow where they are equal. */
  function expertsOf(experts, strength) {
    const across = Math.ceil(Math.sqrt(experts.length)), grid = make('span', { class: 'experts', 'aria-hidden': 'true', style: `grid-template-columns:repeat(${across},8px)` });
    for (const [expert, error, share, marked] of experts) {
      const part = make('i', { title: `${expert}: ${marked ? 'marked' : share ? (100 * share).toPrecision(3) + ' % differ' : 'equal'}` });
      if (marked) part.classList.add('lost-part');
      else if (error > 0 || share > 0) part.style.background = `color-mix(in srgb, var(--c3) ${number(25 + 75 * strength(error))}%, transparent)`;
      grid.append(part);
    }
    return grid;
  }

  function showDiff(diff, cell) {
    document.querySelector('main').classList.add('chosen');
    details.replaceChildren();
    for (const index of cell.tensors) {
      const tensor = diff.tensors[index];
      details.append(make('h3', {}, shown(tensor.key)), make('p', {}, shown(tensor.text)));
      if (tensor.grid) details.append(gridOf(tensor));
    }
    details.focus();
  }

  /* The tensor as tiles, shaded by the share of elements that differ; lines are the seams of A's pieces (solid) and of B's (dashed). */
  function gridOf(tensor) {
    const [rows, columns] = tensor.grid, w = 400, h = Math.max(40, Math.min(360, w * rows / columns));
    const svg = draw('svg', { class: 'tiles', viewBox: `0 0 ${w + 2} ${h + 20}`, width: w + 2, height: h + 20, role: 'img', 'aria-label': 'tiles of the tensor, shaded by the share of elements that differ' });
    tensor.tiles.forEach((share, i) => {
      const x = i % columns, y = Math.floor(i / columns);
      const rect = draw('rect', { x: 1 + x * w / columns, y: 1 + y * h / rows, width: w / columns, height: h / rows });
      rect.style.fill = share ? `rgba(var(--heat), ${number(0.2 + 0.8 * share)})` : 'transparent';
      svg.append(rect);
    });
    svg.append(draw('path', { class: 'frame', d: box(1, 1, w, h) }));
    const seams = (list, style) => list.forEach(([axis, at]) => svg.append(draw('path', { d: axis ? `M${1 + at * w} 1v${h}` : `M1 ${1 + at * h}h${w}`, style })));
    seams(tensor.seamsA, 'stroke:var(--c2);stroke-width:1.5');
    seams(tensor.seamsB, 'stroke:var(--c4);stroke-width:1.5;stroke-dasharray:5 3');
    svg.append(draw('text', { x: 1, y: h + 15 }, 'seams of pieces: A orange, B dashed'));
    return svg;
  }

  /* ---- all of it ---- */
  document.getElementById('title').textContent = shown(data.title);
  document.getElementById('subtitle').textContent = shown(data.subtitle);
  document.getElementById('footer').textContent = shown(data.footer);
  const pictures = document.getElementById('pictures');
  if (data.maps) pictures.append(legend(data.maps));
  if (data.moves) pictures.append(drawMoves(data.maps[0], data.maps[1], data.moves));
  for (const map of data.maps || []) pictures.append(drawMap(map));
  if (data.diff) pictures.append(drawDiff(data.diff));
})();
