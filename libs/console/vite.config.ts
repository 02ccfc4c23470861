import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, loadEnv } from "vite";

// The gateway serves the build from its own package, so that no installation needs Node.
export default defineConfig({
  base: "./", // relative, since a proxy may serve the gateway below a path of its own
  plugins: [svelte()],
  build: {
    outDir: "../../services/gateway/stretto_gateway/console",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // data: URLs are not allowed by the page's policy
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": loadEnv("", ".", "STRETTO_").STRETTO_GATEWAY ?? "http://127.0.0.1:8080" } },
});
