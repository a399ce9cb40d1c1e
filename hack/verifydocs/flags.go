package main

import (
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"kubedns/cmd/kube-dns/app/options"
)

// flagPage is what docs/flags.md says: defaults by name, without dashes in
// front and with dashes for underscores.
type flagPage struct {
	programs  map[string]map[string]string // by program
	variables map[string]string
	log       map[string]string // the flags that all programs have of glog; defaults are not checked
}

var (
	flagRow     = regexp.MustCompile("^\\| `--?([A-Za-z][A-Za-z0-9_-]*)` \\| (?:`([^`]*)`)? ?\\|")
	variableRow = regexp.MustCompile("^\\| `([A-Z][A-Z_]+)` \\| (?:`([^`]*)`)? ?\\|")
	loggedFlag  = regexp.MustCompile("`--([a-z][a-z-]*)`")

	// pflag: "  -v, --v Level    text (default x)"; flag: "  -configDir directory",
	// with the text and the default in the next line.
	helpFlag    = regexp.MustCompile(`^\s+(?:-\w, )?--?([A-Za-z][\w-]*)`)
	helpDefault = regexp.MustCompile(`\(default "?([^")]*)"?\)`)
)

// parseFlagPage reads a section for each program with a table of its flags, and
// a section "Log", which names those of the log in its text.
func parseFlagPage(text string) (flagPage, error) {
	p := flagPage{map[string]map[string]string{}, map[string]string{}, map[string]string{}}
	section := ""
	for line := range strings.SplitSeq(text, "\n") {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
			continue
		}
		if section == "Log" {
			for _, m := range loggedFlag.FindAllStringSubmatch(line, -1) {
				p.log[m[1]] = ""
			}
			continue
		}
		if m := flagRow.FindStringSubmatch(line); m != nil {
			if p.programs[section] == nil {
				p.programs[section] = map[string]string{}
			}
			if _, twice := p.programs[section][normal(m[1])]; twice {
				return p, fmt.Errorf("%s: %s stands there twice", section, m[1])
			}
			p.programs[section][normal(m[1])] = m[2]
		} else if m := variableRow.FindStringSubmatch(line); m != nil {
			p.variables[m[1]] = m[2]
		}
	}
	return p, nil
}

func normal(name string) string { return strings.ReplaceAll(name, "_", "-") }

// parseHelp returns each flag's default as --help prints it, "" where it prints
// none: that is a zero value.
func parseHelp(text string) map[string]string {
	flags := map[string]string{}
	last := ""
	for line := range strings.SplitSeq(text, "\n") {
		if m := helpFlag.FindStringSubmatch(line); m != nil {
			last = normal(m[1])
			flags[last] = ""
		}
		// The text of --probe has a default of its own in parentheses.
		if all := helpDefault.FindAllStringSubmatch(line, -1); last != "" && last != "probe" && all != nil {
			flags[last] = all[len(all)-1][1]
		}
	}
	return flags
}

// environment is kube-dns's variables and their defaults.
func environment() map[string]string {
	variables := map[string]string{}
	o, _, err := options.Parse(nil, func(string) string { return "" }, flag.NewFlagSet("", flag.ContinueOnError))
	if err != nil {
		return variables // all of them are then reported as unknown
	}
	for _, v := range o.Environment {
		variables[v.Name] = v.Default
	}
	return variables
}

// compareFlags returns what is to be changed in the documented flags; shared
// ones may be there.
func compareFlags(have, documented, shared map[string]string) (mistakes []string) {
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, ok := shared[name]; ok || name == "help" {
			continue
		}
		value, ok := documented[name]
		switch {
		case !ok:
			mistakes = append(mistakes, name+" is missing")
		case have[name] == "" && slices.Contains([]string{"", "0", "0s", "false"}, value), have[name] == value:
		default:
			mistakes = append(mistakes, fmt.Sprintf("the default of %s is %q, not %q", name, have[name], value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if _, ok := have[name]; !ok {
			mistakes = append(mistakes, "there is no "+name)
		}
	}
	return mistakes
}
