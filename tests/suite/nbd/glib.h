/* What nbd-tester-client uses of GLib, so that it can be built without: messages on standard error, and a table of
   64-bit keys, in which at most some hundred requests are at a time. */
#ifndef TESTER_GLIB_H
#define TESTER_GLIB_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TRUE
#define TRUE 1
#define FALSE 0
#endif
#define G_GNUC_UNUSED __attribute__((unused))
#define G_GNUC_NORETURN __attribute__((noreturn))

typedef char gchar;

#define g_strdup strdup
#define g_message(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr))
#define g_warning g_message
#define g_critical g_message
#define g_error(...) (g_message(__VA_ARGS__), abort())

struct tester_entry {
	void *key, *value;
	struct tester_entry *next;
};

typedef struct {
	struct tester_entry *first;
} GHashTable;

/* The only kind of key there is. */
#define g_int64_hash NULL
#define g_int64_equal NULL

static inline GHashTable *g_hash_table_new(void *hash, void *equal)
{
	(void)hash;
	(void)equal;
	return calloc(1, sizeof(GHashTable));
}

static inline struct tester_entry **tester_place(GHashTable *table, const void *key)
{
	struct tester_entry **at = &table->first;
	while (*at && memcmp((*at)->key, key, 8) != 0)
		at = &(*at)->next;
	return at;
}

static inline void *g_hash_table_lookup(GHashTable *table, const void *key)
{
	struct tester_entry *found = *tester_place(table, key);
	return found ? found->value : NULL;
}

static inline int g_hash_table_remove(GHashTable *table, const void *key)
{
	struct tester_entry **at = tester_place(table, key), *found = *at;
	if (!found)
		return FALSE;
	*at = found->next;
	free(found);
	return TRUE;
}

static inline void g_hash_table_insert(GHashTable *table, void *key, void *value)
{
	struct tester_entry *entry = malloc(sizeof *entry);
	if (!entry)
		abort();
	g_hash_table_remove(table, key);
	entry->key = key;
	entry->value = value;
	entry->next = table->first;
	table->first = entry;
}

static inline void g_hash_table_destroy(GHashTable *table)
{
	while (table->first)
		g_hash_table_remove(table, table->first->key);
	free(table);
}

#endif
