// A box on the query, dragged or moved by keys: x0, y0, x1, y1 in shares of width and height.

const LEAST = 0.03;

export function makeCrop(stage, box, changed) {
  let value = null;
  let drag = null;

  function show() {
    box.hidden = value === null;
    stage.classList.toggle("cropped", value !== null);
    if (value) {
      const [x0, y0, x1, y1] = value;
      Object.assign(box.style, {
        left: `${100 * x0}%`, top: `${100 * y0}%`, width: `${100 * (x1 - x0)}%`, height: `${100 * (y1 - y0)}%`,
      });
    }
  }

  function place(event) {
    const frame = stage.getBoundingClientRect();
    return [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height].map(inside);
  }

  function set(next, tell = false) {
    value = next;
    show();
    if (tell) changed(value);
  }

  function move(from, across, down) {
    const [x0, y0, x1, y1] = from;
    const dx = Math.min(Math.max(across, -x0), 1 - x1);
    const dy = Math.min(Math.max(down, -y0), 1 - y1);
    return [x0 + dx, y0 + dy, x1 + dx, y1 + dy];
  }

  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    stage.setPointerCapture(event.pointerId);
    const start = place(event);
    const within = value && start[0] > value[0] && start[0] < value[2] && start[1] > value[1] && start[1] < value[3];
    drag = { start, before: value, within };
  });
  stage.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const now = place(event);
    if (drag.within) {
      set(move(drag.before, now[0] - drag.start[0], now[1] - drag.start[1]));
    } else {
      const low = [0, 1].map((axis) => Math.min(drag.start[axis], now[axis]));
      const high = [0, 1].map((axis) => Math.max(drag.start[axis], now[axis]));
      if (high[0] - low[0] > LEAST && high[1] - low[1] > LEAST) set([...low, ...high]);
    }
  });
  function end(event) {
    if (!drag) return;
    const before = drag.before;
    drag = null;
    if (event.type === "pointercancel") set(before);
    else if (value !== before) changed(value);
  }
  stage.addEventListener("pointerup", end);
  stage.addEventListener("pointercancel", end);

  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-0.02, 0], ArrowRight: [0.02, 0], ArrowUp: [0, -0.02], ArrowDown: [0, 0.02] }[event.key];
    if (step) {
      const [x0, y0, x1, y1] = value;
      set(event.shiftKey
        ? [x0, y0, inside(Math.max(x0 + LEAST, x1 + step[0])), inside(Math.max(y0 + LEAST, y1 + step[1]))]
        : move(value, ...step));
    } else if (event.key === "Enter") changed(value);
    else if (event.key === "Escape" || event.key === "Delete") set(null, true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  return {
    get: () => value,
    set,
    begin() {
      if (!value) set([0.2, 0.2, 0.8, 0.8]);
      box.focus();
    },
  };
}

function inside(share) {
  return Math.min(Math.max(share, 0), 1);
}
