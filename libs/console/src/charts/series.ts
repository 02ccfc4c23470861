/** Points of a chart: with gaps where nothing was measured, and curves of quality. */
import type { Schemas } from "../api/http";

/** Windows follow each other closely; a pause this many times as long as the median is a gap. */
const PAUSE = 2.5;

/** Put a time without values into each pause, so that no line is drawn where no training was. */
export function withGaps<P>(points: readonly P[], at: (point: P) => number, values: ((point: P) => number | null)[]): { times: number[]; lines: (number | null)[][] } {
  const steps = points.slice(1).map((point, index) => at(point) - at(points[index]!));
  const median = [...steps].sort((one, other) => one - other)[Math.floor(steps.length / 2)] ?? 0;
  const times: number[] = [];
  const lines: (number | null)[][] = values.map(() => []);
  points.forEach((point, index) => {
    const step = steps[index - 1] ?? 0;
    if (median && step > PAUSE * median) {
      times.push(at(point) - step / 2);
      for (const line of lines) line.push(null);
    }
    times.push(at(point));
    values.forEach((value, line) => lines[line]!.push(value(point)));
  });
  return { times, lines };
}

type Point = Schemas["LearningPoint"];

/** Loss, AUC and own metrics by name, each as a function of a point. A model with an own loss has no AUC. */
export function metricsOf(points: readonly Point[]): [string, (point: Point) => number | null][] {
  const last = points.at(-1);
  if (!last) return [];
  const own = (name: string) => (point: Point) => point.metrics.find((one) => one.name === name)?.value ?? null;
  const names = last.metrics.map((one) => one.name);
  const found: [string, (point: Point) => number | null][] = names.includes("loss")
    ? [[last.loss_name || "loss", own("loss")]]
    : [[last.loss_name || "loss", (point) => point.loss], ["AUC", (point) => point.auc]];
  return [...found, ...names.filter((name) => name !== "loss").map((name): [string, (point: Point) => number | null] => [`own ${name}`, own(name)])];
}
