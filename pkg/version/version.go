// Package version holds what a program says of itself: --version,
// kubedns_build_info and the user agent towards the API server. The linker
// sets it (see the Makefile).
package version

// Version is the release, "dev" where the linker set none.
var Version = "dev"

// Revision is the git commit the program was built from, "unknown" where the
// linker set none.
var Revision = "unknown"
