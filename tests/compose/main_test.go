// Loads deploy/compose.yaml as Docker Compose does: with its schema, anchors, variables and references.
package compose

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const file = "../../deploy/compose.yaml"

func load(path string) (*types.Project, error) {
	options, err := cli.NewProjectOptions([]string{path})
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}

func TestTheFileIsLoaded(t *testing.T) {
	project, err := load(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(project.Services) != 8 {
		t.Errorf("%d services", len(project.Services))
	}
	for name, service := range project.Services {
		for _, volume := range service.Volumes {
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if service.Build != nil {
			if _, err := os.Stat(filepath.Join(service.Build.Context, "Dockerfile")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, service := range []string{"fermata-1", "fermata-2", "fermata-3"} {
		environment := project.Services[service].Environment
		if got := environment["FERMATA_CFG_PEERS__ADVERTISE"]; got == nil || *got != service+":7451" {
			t.Errorf("%s: advertises another address", service)
		}
	}
}

func TestFaultsAreFound(t *testing.T) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range []struct{ from, to string }{
		{"start_period:", "start_periode:"},
		{"stop_grace_period:", "stop_grace_time:"},
		{"source: peers.secret,", "source: peers.secrets,"},
		{"cassandra-2: {condition", "cassandra-9: {condition"},
		{"service_completed_successfully", "service_done"},
		{"<<: *store", "<<: *stores"},
	} {
		bad := strings.Replace(string(text), fault.from, fault.to, 1)
		if bad == string(text) {
			t.Fatalf("%q is not there", fault.from)
		}
		path := filepath.Join(t.TempDir(), "compose.yaml")
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(path); err == nil {
			t.Errorf("%q is not found", fault.to)
		}
	}
}
