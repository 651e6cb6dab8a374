// Draws the curves of language models with uPlot: from `data-curve`, in the colors of the page.
"use strict";

const TICKS = [...Array(30).keys()].map((n) => [1, 2, 5][n % 3] * 10 ** (Math.floor(n / 3) - 3)); // of the logarithmic axis

window.drawCurves = () => {
  for (const box of document.querySelectorAll(".curve:empty")) draw(box);

  function draw(box) {
    const { lines, asked, limit } = JSON.parse(box.dataset.curve);
    const color = (name) => getComputedStyle(box).getPropertyValue(`--${name}`).trim();
    const font = `12px ${getComputedStyle(box).fontFamily}`;
    const column = (line, n) => line.points.map((point) => point[n]);
    const data = uPlot.join(lines.map((line) => [column(line, 0), column(line, 1)])); // over the times of all
    const axis = (label) => ({
      label, stroke: color("dim"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false },
      font, labelFont: font, labelSize: 18, labelGap: 2,
    });
    const series = lines.map((line, n) => ({
      label: line.name, stroke: color(`s${n % 6}`), width: 2, spanGaps: true, points: { show: true, size: 5, fill: color(`s${n % 6}`) },
      value: (self, _, of, at) => (at == null ? "" : told(lines[of - 1].points, self.data[0][at])),
    }));
    const chart = new uPlot({
      width: box.clientWidth, height: 320, padding: [18, 18, 0, 0],
      cursor: { y: false, drag: { x: false }, dataIdx: (_, of, at) => at },
      scales: {
        x: { time: false, distr: 3, range: (_, low, high) => [low / 1.1, 1.1 * high] },
        y: { range: (_, low, high) => [0, 1.1 * high] },
      },
      axes: [
        { ...axis("ms per output token (logarithmic)"), size: 28, splits: ticks, filter: (_, found) => found },
        { ...axis("tokens/s of a GPU"), size: 56 },
      ],
      series: [{ label: "time per token", value: (_, ms) => (ms == null ? "point at the chart" : `${ms.toFixed(1)} ms`) }, ...series],
      legend: { markers: { fill: (_, n) => color(`s${(n - 1) % 6}`) } },
      hooks: { draw: [mark] },
    }, data, box);
    new ResizeObserver(() => chart.setSize({ width: box.clientWidth, height: 320 })).observe(box);

    function ticks(_, of, low, high) {
      return TICKS.filter((ms) => low <= ms && ms <= high);
    }

    /** What a line says at a time: between its points as it is drawn there, and nothing beyond them. */
    function told(points, ms) {
      const next = points.findIndex((point) => point[0] >= ms);
      if (next < 0 || (next === 0 && points[0][0] > ms)) return "\u2013";
      const [to, from] = [points[next], points[Math.max(next - 1, 0)]];
      const part = to[0] === ms ? 1 : Math.log(ms / from[0]) / Math.log(to[0] / from[0]);
      const [rate, requests] = [1, 2].map((n) => Math.round(from[n] + part * (to[n] - from[n])));
      return `${rate} tokens/s, ${requests} request${requests === 1 ? "" : "s"}`;
    }

    /** The names of the lines at their ends; the rows of the answer as rings, the chosen one filled; the limit. */
    function mark(self) {
      const { ctx } = self;
      const [x, y] = [(ms) => self.valToPos(ms, "x", true), (rate) => self.valToPos(rate, "y", true)];
      ctx.save();
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.font = `${12 * devicePixelRatio}px ${getComputedStyle(box).fontFamily}`;
      ctx.textAlign = "center";
      const named = [];
      lines.forEach(({ name, points }, n) => {
        const [ms, rate] = points.at(-1);
        const [left, top] = [x(ms), y(rate)];
        const near = named.some(([l, t]) => Math.hypot(l - left, 3 * (t - top)) < 54 * devicePixelRatio);
        named.push([left, top]);
        ctx.fillStyle = color(`s${n % 6}`);
        ctx.fillText(name, left, top + (near ? 18 : -9) * devicePixelRatio);
      });
      ctx.strokeStyle = color("ink");
      for (const [ms, rate, chosen] of asked) {
        ctx.fillStyle = color(chosen ? "ink" : "paper");
        ctx.beginPath();
        ctx.arc(x(ms), y(rate), (chosen ? 7 : 5) * devicePixelRatio, 0, 2 * Math.PI);
        ctx.fill();
        ctx.stroke();
      }
      if (limit >= self.scales.x.min && limit <= self.scales.x.max) {
        ctx.strokeStyle = color("bad");
        ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(x(limit), self.bbox.top);
        ctx.lineTo(x(limit), self.bbox.top + self.bbox.height);
        ctx.stroke();
      }
      ctx.restore();
    }
  }
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const box of document.querySelectorAll(".curve")) box.replaceChildren();
  window.drawCurves();
});
