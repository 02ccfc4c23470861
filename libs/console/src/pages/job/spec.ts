/** Job files from specifications: without defaults, as people write them. */
import type { Schemas } from "../../api/http";

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type Schema = { $ref?: string; properties?: Record<string, Schema>; default?: Json; $defs?: Record<string, Schema>; anyOf?: Schema[] };

const isMap = (value: Json | undefined): value is { [name: string]: Json } =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Return a specification without the fields that have their defaults. */
export function withoutDefaults(value: Json, schema: Schema, root: Schema = schema): Json {
  const found = resolved(schema, root);
  if (!isMap(value)) return value;
  const kept = Object.entries(value).flatMap(([name, one]) => {
    const field = found.properties?.[name];
    if (field && "default" in field && JSON.stringify(field.default) === JSON.stringify(one)) return [];
    const inner = field ? withoutDefaults(one, field, root) : one;
    const isEmpty = isMap(inner) && !Object.keys(inner).length;
    return (isEmpty && field) || one === null ? [] : [[name, inner] as const];
  });
  return Object.fromEntries(kept);
}

function resolved(schema: Schema, root: Schema): Schema {
  const one = schema.anyOf?.find((each) => each.$ref) ?? schema;
  return one.$ref ? (root.$defs?.[one.$ref.split("/").at(-1)!] ?? {}) : one;
}

/** Return a value as YAML, in the order of its fields. Texts are quoted as in JSON, which YAML reads. */
export function yaml(value: Json, indent = ""): string {
  if (!isMap(value)) return JSON.stringify(value);
  return Object.entries(value)
    .map(([name, one]) => {
      const key = /^[A-Za-z_][\w.-]*$/.test(name) ? name : JSON.stringify(name);
      return isMap(one) && Object.keys(one).length ? `${indent}${key}:\n${yaml(one, `${indent}  `)}` : `${indent}${key}: ${isMap(one) ? "{}" : yaml(one)}`;
    })
    .join("\n");
}

/** Return a job file that trains like `spec` under another name; `checkpoint`: URL of the manifest to start from. */
export function clone(spec: Schemas["JobSpec"], schema: Schema, checkpoint: string): string {
  const { name, api: _, ...rest } = JSON.parse(JSON.stringify(spec)) as { name: string; api: string; [field: string]: Json };
  const short = withoutDefaults(rest, schema) as { [field: string]: Json };
  if (checkpoint) short.checkpoint = { ...(isMap(short.checkpoint) ? short.checkpoint : {}), restore_from: checkpoint };
  return `${yaml({ name: nextName(name), ...short })}\n`;
}

/** "ads-7" becomes "ads-8", "ads" becomes "ads-2": a name belongs to one job for ever. */
export function nextName(name: string): string {
  const found = /^(.*-)(\d{1,9})$/.exec(name);
  return found ? `${found[1]}${String(Number(found[2]) + 1).padStart(found[2]!.length, "0")}` : `${name.slice(0, 61)}-2`;
}

/** Return the fields of a specification by their dotted paths. */
export function flat(value: Json, prefix = ""): Map<string, string> {
  if (!isMap(value)) return new Map([[prefix, JSON.stringify(value)]]);
  return new Map(Object.entries(value).flatMap(([name, one]) => [...flat(one, prefix ? `${prefix}.${name}` : name)]));
}
